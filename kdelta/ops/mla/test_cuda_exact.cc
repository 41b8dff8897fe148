// mla on CUDA bit for bit: company and verification in the exact mode, pages far into the pool.
#include "kdelta/ops/mla/test_cuda_scene.h"

namespace kdelta::test {
namespace {

constexpr MlaCudaSizes kSizes{.H = 5, .nope = 128, .rope = 64, .value = 128, .latent = 512, .page = 64};
constexpr int64_t kRow = 5 * 128;  // outputs of a token

// A case's arrays on the device, and a call of one row in the exact mode.
class OnDevice {
 public:
  explicit OnDevice(MlaCudaCase<bf16>& m) : m_(m), args_(m.args(EffectCase::At(nullptr))) {
    args_.q.data = put(m.q), args_.cache.data = put(m.p.cache), args_.kv_b.data = put(m.weight);
    args_.seq.cu.data = put(m.p.cu), args_.seq.context.data = put(m.p.context), args_.seq.pages.data = put(m.p.pages);
    args_.out.data = put(m.out);
  }
  MlaArgs& args() { return args_; }
  MlaDesc describe(bool exact, int64_t max_context) const {
    return {.target = EffectCase::device_target(),
            .tokens = m_.p.T,
            .heads = m_.p.s.H,
            .nope = 128,
            .rope = 64,
            .value = 128,
            .latent = 512,
            .max_len = m_.p.longest,
            .max_context = max_context,
            .sequences = m_.p.N,
            .n_prefill = m_.p.n_prefill,
            .n_decode = m_.p.N - m_.p.n_prefill,
            .page_tokens = m_.p.s.page,
            .aligned = true,
            .exact = exact,
            .activation = DType::bf16,
            .cache = DType::bf16,
            .weight = DType::bf16};
  }
  void run(const std::string& variant) { run(variant, describe(true, m_.p.furthest)); }
  void run(const std::string& variant, const MlaDesc& d) {
    for (const MlaVariant& row : mla_variants()) {
      if (row.name != variant) continue;
      Arena::Scope scope(*ex_.exec().scratch);
      row.run(ex_, args_, d, ex_.exec().scratch->take(row.scratch_bytes(d)));
    }
    copy_async(ex_.stream(), m_.out.data(), args_.out.data, m_.out.size() * 2);
    ex_.stream().synchronize();
    EXPECT_EQ(ex_.take_faults(), 0u);
  }
  Stream& stream() { return ex_.stream(); }

 private:
  template <class T>
  T* put(Guarded<T>& a) {
    const auto bytes = a.size() * static_cast<int64_t>(sizeof(T));
    buffers_.emplace_back(kCuda, bytes);
    copy_async(ex_.stream(), buffers_.back().data(), a.data(), bytes);
    ex_.stream().synchronize();
    return static_cast<T*>(buffers_.back().data());
  }
  MlaCudaCase<bf16>& m_;
  CudaExec ex_{int64_t{1} << 30};
  std::vector<Buffer> buffers_;
  MlaArgs args_;
};

// Rows of this device that the exact mode may choose.
std::vector<std::string> exact_rows() {
  std::vector<std::string> names;
  for (const MlaVariant& row : mla_variants())
    if (machine_refusal(row, EffectCase::device_target()) == nullptr && std::string(row.name) != "cuda_expanded")
      names.push_back(row.name);
  return names;
}

// `tokens` of one sequence from `context` on, with the latents, queries and weights that every other such call has.
struct Timeline {
  static constexpr int64_t kPositions = 1400;
  Timeline() : latents({kPositions, 576}), queries({kPositions, 5 * 192}) {
    Rng rng(9);
    fill_normal(latents, rng);
    fill_normal(queries, rng);
  }
  void put(MlaCudaCase<bf16>& m, int64_t n) {
    const PagedRow& r = m.p.rows[static_cast<size_t>(n)];
    for (int64_t i = 0; i < r.context + r.len; ++i) std::copy_n(&latents[i * 576], 576, m.p.row(n, i));
    for (int64_t i = 0; i < r.len; ++i) std::copy_n(&queries[(r.context + i) * 960], 960, &m.q[(m.p.cu[n] + i) * 960]);
  }
  Guarded<bf16> latents, queries;
};

std::vector<bf16> outputs(const std::string& variant, Timeline& timeline, const std::vector<PagedRow>& rows,
                          int prefill, int64_t n) {
  MlaCudaCase<bf16> m(kSizes, rows, prefill, DType::bf16, {});
  Rng weights(4), rest(rows.size());
  m.fill(rest);
  m.fill_weight(weights);
  timeline.put(m, n);
  OnDevice(m).run(variant);
  const bf16* first = &m.out[m.p.cu[n] * kRow];
  return std::vector<bf16>(first, first + rows[static_cast<size_t>(n)].len * kRow);
}
void expect_bits(const std::vector<bf16>& a, const std::vector<bf16>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * 2), 0) << what;
}

TEST(MlaCudaExact, BitsOfASequenceDependNeitherOnItsCompanyNorOnTheSizeOfTheStep) {
  Timeline timeline;
  for (const std::string& variant : exact_rows())
    for (int32_t context : {0, 300, 511, 1023, 1390}) {
      const PagedRow row{context, context == 300 ? 3 : 1};
      const auto alone = outputs(variant, timeline, {row}, 0, 0);
      expect_bits(outputs(variant, timeline, {{70, 1}, {900, 2}, row, {1390, 1}}, 0, 2), alone, variant);
      std::vector<PagedRow> many(150, PagedRow{40, 1});
      many[77] = row, many[3] = {3000, 1};
      expect_bits(outputs(variant, timeline, many, 0, 77), alone, variant);
    }
}

TEST(MlaCudaExact, TokensOfAVerificationHaveTheBitsOfSingleSteps) {
  Timeline timeline;
  for (const std::string& variant : exact_rows())
    for (int32_t context : {0, 30, 509, 1000}) {
      const auto together = outputs(variant, timeline, {{20, 1}, {context, 8}}, 0, 1);
      for (int32_t i = 0; i < 8; ++i) {
        const auto one = outputs(variant, timeline, {{context + i, 1}}, 0, 0);
        expect_bits({together.begin() + i * kRow, together.begin() + (i + 1) * kRow}, one, str(variant, " token ", i));
      }
    }
}

TEST(MlaCudaExact, PagesPast32BitsOfElementsGiveTheBitsOfNearOnes) {
  constexpr int64_t kFar = 120000, kPage = 64 * 576;  // elements begin past 2^32
  if (device_free_bytes(kCuda) < int64_t{20} << 30) GTEST_SKIP() << "needs 20 GiB of device memory";
  Buffer pool(kCuda, (kFar + 200) * kPage * 2);
  for (const std::string& variant : exact_rows()) {
    MlaCudaCase<bf16> near(kSizes, {{300, 2}, {100, 1}}, 1, DType::bf16, {});
    Rng rng(1);
    near.fill(rng);
    MlaCudaCase<bf16> far(kSizes, {{300, 2}, {100, 1}}, 1, DType::bf16, {});
    Rng again(1);
    far.fill(again);
    OnDevice(near).run(variant);
    const int64_t pages = far.p.cache.shape()[0];
    for (int64_t i = 0; i < far.p.pages.size(); ++i)
      if (far.p.pages[i] > 0) far.p.pages[i] += static_cast<int32_t>(kFar);
    OnDevice on(far);
    copy_async(on.stream(), static_cast<bf16*>(pool.data()) + kFar * kPage, far.p.cache.data(), pages * kPage * 2);
    on.args().cache = AnyConstView(pool.data(), DType::bf16, {kFar + 200, 64, 576});
    on.run(variant);
    EXPECT_EQ(std::memcmp(near.out.data(), far.out.data(), static_cast<size_t>(3 * kRow) * 2), 0) << variant;
  }
}

TEST(MlaCudaExact, AHeadOfALongPrefillHasItsBitsWhicheverRoundOfHeadsItFallsTo) {
  MlaCudaCase<bf16> m(kSizes, {{100, 300}, {20, 1}}, 1, DType::bf16, {});
  Rng rng(1);
  m.fill(rng);
  OnDevice on(m);
  std::vector<bf16> outputs[2];
  for (int64_t most : {m.p.furthest, int64_t{220000}}) {  // room for five heads, and for four
    on.args().seq.max_context = most;
    on.run("cuda_expanded", on.describe(false, most));
    outputs[most > m.p.furthest].assign(m.out.data(), m.out.data() + 301 * kRow);
  }
  expect_bits(outputs[0], outputs[1], "rounds of heads");
}

}  // namespace
}  // namespace kdelta::test
