// sample_device on CUDA: the tokens of the definition for every feature, beside the ones that are unusable.
#include "kdelta/core/fault.h"
#include "kdelta/ops/sample/test_rows.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {
namespace {

// Arrays of a call; `rows` of `M` live, filled anew for every replay.
struct DeviceCase {
  int64_t M, live, V, W, gap;
  Guarded<float> logits;
  Guarded<uint8_t> rows, bias;
  Guarded<int32_t> banned, history, token, top_token;
  Guarded<float> logprob, top_logprob;
  EffectCase c;
  bool append = false;

  DeviceCase(int64_t M_, int64_t live_, int64_t V_, int64_t W_, int64_t gap_ = 0)
      : M(M_),
        live(live_),
        V(V_),
        W(W_),
        gap(gap_),
        logits({M, V + gap}),
        rows({M * static_cast<int64_t>(sizeof(SampleDeviceRow))}),
        bias({M * 8 * static_cast<int64_t>(sizeof(LogitBias))}),
        banned({M * 8}),
        history({M * 100}),
        token({M}),
        top_token({M, W}),
        logprob({M}),
        top_logprob({M, W}) {
    c.array("logits", logits);
    c.array("rows", rows);
    c.array("bias", bias);
    c.array("banned", banned);
    c.array("history", history);
    c.array("token", token);
    c.array("top_token", top_token);
    c.array("logprob", logprob, {.relative = 1e-6, .absolute = 1e-12});
    c.array("top_logprob", top_logprob, {.relative = 1e-6, .absolute = 1e-12});
    c.fill = [this](Rng& rng) {
      std::vector<RandomRow> random;
      for (int64_t m = 0; m < live; ++m) random.emplace_back(rng, V);
      fill(random, rng);
    };
    c.call = [this](const Exec& ex, const EffectCase::At& at) { sample_device(ex, args(at)); };
  }
  SampleDeviceRow& row(int64_t m) { return reinterpret_cast<SampleDeviceRow*>(rows.data())[m]; }
  template <class T>
  std::span<T> span(Guarded<uint8_t>& bytes) {
    return {reinterpret_cast<T*>(bytes.data()), static_cast<size_t>(bytes.size()) / sizeof(T)};
  }
  void fill(const std::vector<RandomRow>& random, Rng& rng) {
    for (int64_t m = 0; m < live; ++m) random_logits(logits.data() + m * (V + gap), V, rng);
    std::fill_n(banned.data(), banned.size(), 1 << 30);
    std::fill_n(history.data(), history.size(), 1 << 30);
    pack_sample_rows(rows_of(random), V, {},
                     {.rows = span<SampleDeviceRow>(rows),
                      .bias = span<LogitBias>(bias),
                      .banned = std::span(banned.data(), static_cast<size_t>(banned.size())),
                      .history = std::span(history.data(), static_cast<size_t>(history.size()))});
  }
  SampleDeviceArgs args(const EffectCase::At& at) {
    const auto view = [](auto* type, const View<uint8_t>& bytes) {
      using T = std::remove_pointer_t<decltype(type)>;
      return View<const T>(reinterpret_cast<const T*>(bytes.data), {bytes.dim(0) / static_cast<int64_t>(sizeof(T))});
    };
    return {.logits = View<const float>(at(logits).data, {M, V}, {V + gap, 1}),
            .rows = view(static_cast<SampleDeviceRow*>(nullptr), at(rows)),
            .bias = view(static_cast<LogitBias*>(nullptr), at(bias)),
            .banned = at(banned),
            .history = at(history),
            .append = append,
            .token = at(token),
            .logprob = at(logprob),
            .top_token = at(top_token),
            .top_logprob = at(top_logprob)};
  }
  void run() { c.run("sample_device", sample_device_variants()); }
};

TEST(SampleCuda, EveryFeatureGivesTheTokensOfTheDefinition) {
  for (int64_t V : {1, 2, 3, 31, 33, 250, 1000, 4099})
    for (int round = 0; round < 4; ++round) {
      SCOPED_TRACE(str("V ", V, " round ", round));
      DeviceCase m(60, 57, V, 5, round);
      const auto fill = m.c.fill;
      m.c.fill = [&](Rng& rng) {
        for (int i = 0; i < round; ++i) rng();  // other rows in every round
        fill(rng);
      };
      m.run();
      if (testing::Test::HasFailure()) return;
    }
}

TEST(SampleCuda, AVocabularyOfAModelAndMoreRowsThanALaunchGiveTheTokensOfTheDefinition) {
  DeviceCase(12, 11, 163840, 20).run();
  DeviceCase(70, 70, 2001, 0).run();
  DeviceCase(2, 2, 400001, 3).run();
}

TEST(SampleCuda, DrawsOfFlatAndOfTiedLogitsFallWhereTheDefinitionPutsThem) {
  DeviceCase m(64, 64, 777, 0);
  m.c.fill = [&](Rng& rng) {
    std::vector<RandomRow> random;
    for (int64_t i = 0; i < 64; ++i) {
      random.emplace_back(rng, m.V);
      random.back() = RandomRow(rng, m.V);
      random.back().params = {.temperature = 1,
                              .top_k = static_cast<int32_t>(i % 4 == 0 ? 0 : rng() % 600),
                              .top_p = i % 3 == 0 ? 1.0f : 0.001f * static_cast<float>(rng() % 1000),
                              .seed = rng()};
    }
    m.fill(random, rng);
    for (int64_t i = 0; i < 64; ++i)
      for (int64_t v = 0; v < m.V; ++v) m.logits[i * m.V + v] = i % 2 == 0 ? 2.5f : static_cast<float>(v * 7 % 3);
  };
  m.run();
}

TEST(SampleCuda, AppendPutsTokensBehindHistoriesThatAreKept) {
  DeviceCase m(9, 8, 300, 0);
  m.append = true;
  const auto fill = m.c.fill;
  m.c.fill = [&](Rng& rng) {
    fill(rng);
    for (int64_t i = 0; i < 8; ++i) {
      SampleDeviceRow& r = m.row(i);
      for (int64_t j = 0; j < r.prompt + r.output; ++j)
        m.history[400 + i * 50 + j % 50] = static_cast<int32_t>(rng() % 300);
      r.prompt %= 20, r.output %= 20;
      r.history = i == 7 ? m.history.size() - r.prompt - r.output : 400 + i * 50;  // no place behind the last
      r.kept = i % 4 != 3 || i == 7;
      for (int64_t j = 0; j < r.prompt + r.output; ++j) m.history[r.history + j] = static_cast<int32_t>(rng() % 300);
    }
  };
  m.run();
}

TEST(SampleCuda, ARowOfWrongPlacesOrIdsHasNoTokenRaisesItsFaultAndHarmsNobody) {
  for (int kind = 0; kind < 5; ++kind) {
    SCOPED_TRACE(kind);
    DeviceCase m(4, 4, 100, 2);
    m.c.faults = static_cast<uint32_t>(Fault::token);
    SampleDeviceRow sound;
    m.c.fill = [&](Rng& rng) {
      std::vector<RandomRow> random;
      for (int64_t i = 0; i < 4; ++i) {
        random.emplace_back(rng, m.V);
        random.back().params.repetition_penalty = 1.5f;
      }
      m.fill(random, rng);
      for (int64_t v = 0; v < m.V; ++v) m.logits[m.V + v] = static_cast<float>(v % 13);
      sound = m.row(1);
      SampleDeviceRow& r = m.row(1);
      if (kind == 0) r.bias = 30, r.bias_count = 3;
      if (kind == 1) r.banned = -1, r.banned_count = 1;
      if (kind == 2) r.history = 390, r.prompt = 11;
      if (kind == 3) r.banned = 31, r.banned_count = 1;  // an id of 2^30
      if (kind == 4) r.history = 399, r.prompt = 0, r.output = 1;
    };
    m.c.reference = [&](const Exec& ex, const EffectCase::At& at) {
      SampleDeviceRow& r = m.row(1);
      std::swap(r, sound);
      sample_device(ex, m.args(at));
      std::swap(r, sound);
      m.token[1] = -1, m.logprob[1] = 0;
      for (int64_t i = 0; i < 2; ++i) m.top_token[2 + i] = -1, m.top_logprob[2 + i] = 0;
    };
    m.run();
  }
}

// Rows whose logits begin past 2^31 elements.
TEST(SampleCuda, RowsPast32BitOffsetsGiveTheTokensOfNearOnes) {
  constexpr int64_t kFar = (int64_t{1} << 31) + 64, kV = 5000;
  if (device_free_bytes(kCuda) < int64_t{30} << 30) GTEST_SKIP() << "needs 30 GiB of device memory";
  Rng rng(1);
  std::vector<float> x(3 * kV);
  for (int m = 0; m < 3; ++m)
    for (int64_t v = 0; v < kV; ++v) x[static_cast<size_t>(m * kV + v)] = static_cast<float>(rng() % 1000) * 0.01f;
  std::vector<SampleDeviceRow> rows(3, SampleDeviceRow{.top_p = 0.9f, .seed = 3, .live = 1});
  Buffer far(kCuda, (2 * kFar + kV) * 4), near(kCuda, 3 * kV * 4), row(kCuda, 240), token(kCuda, 12),
      logprob(kCuda, 12);
  CudaExec ex;
  for (const SampleDeviceVariant& variant : sample_device_variants()) {
    if (machine_refusal(variant, EffectCase::device_target()) != nullptr) continue;
    ex.force("sample_device", variant.name);
    std::array<int32_t, 3> got[2];
    for (bool is_far : {false, true}) {
      const int64_t stride = is_far ? kFar : kV;
      auto* base = static_cast<float*>((is_far ? far : near).data());
      for (int64_t m = 0; m < 3; ++m)
        copy_async(ex.stream(), base + m * stride, &x[static_cast<size_t>(m * kV)], kV * 4);
      copy_async(ex.stream(), row.data(), rows.data(), 240);
      sample_device(ex, {.logits = View<const float>(base, {3, kV}, {stride, 1}),
                         .rows = View<const SampleDeviceRow>(static_cast<SampleDeviceRow*>(row.data()), {3}),
                         .bias = View<const LogitBias>(nullptr, {0}),
                         .banned = View<const int32_t>(nullptr, {0}),
                         .history = View<int32_t>(nullptr, {0}),
                         .token = token.view<int32_t>({3}),
                         .logprob = logprob.view<float>({3}),
                         .top_token = View<int32_t>(nullptr, {3, 0}),
                         .top_logprob = View<float>(nullptr, {3, 0})});
      copy_async(ex.stream(), got[is_far].data(), token.data(), 12);
      ex.stream().synchronize();
    }
    EXPECT_EQ(got[0], got[1]) << variant.name;
    EXPECT_FALSE(got[0][0] == got[0][1] && got[0][1] == got[0][2]) << "rows of a test must differ";
  }
}

}  // namespace
}  // namespace kdelta::test
