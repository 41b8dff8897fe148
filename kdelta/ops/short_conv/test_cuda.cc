#include "kdelta/core/fault.h"
#include "kdelta/ops/short_conv/variants.h"
#include "tests/gpu/sequence_arrays.h"

namespace kdelta::test {
namespace {

struct Form {
  int64_t W = 4, C = 96, tail = 0, column = 0;
  bool split = false, silu = true;
};

// Runs a step in one form; rows whose reference differs (skipped ones) are given to the reference as padding.
template <class E>
void check(const Form& f, SequenceCase& s, uint32_t faults = 0, std::vector<int> skipped = {},
           std::vector<int> skipped_snapshots = {}, int64_t slots = 12) {
  SCOPED_TRACE(str("W ", f.W, " C ", f.C, " tail ", f.tail, " column ", f.column, " split ", f.split));
  const int64_t T = s.tokens() + f.tail, R = f.W - 1 + s.columns - 1, stride = f.C + f.column;
  Guarded<E> x({T, stride}), out({T, stride}), state({slots, R, f.C});
  Guarded<float> weight({f.W, f.C});
  const Bound bound = rounded<E>(1e-5, 1e-5);
  EffectCase c;
  c.array("x", x);
  c.array("weight", weight);
  c.array("state", state);
  c.array("out", out, bound);
  s.add_to(c);
  c.fill = [&](Rng& rng) {
    fill_normal(x, rng, 1.5f);
    fill_normal(weight, rng, 0.5f);
    fill_normal(state, rng);
    s.fill();
  };
  c.call = [&](const Exec& ex, const EffectCase::At& at) {
    ShortConvArgs a{.x = AnyConstView(at(x)).columns(f.column, f.C),
                    .weight = at(weight),
                    .activation = f.silu ? ConvActivation::silu : ConvActivation::none,
                    .seq = s.at(at),
                    .state = at(state)};
    const AnyView merged = AnyView(at(out)).columns(f.column, f.C);
    if (f.split)
      for (int64_t i = 0; i < 3; ++i) a.split[static_cast<size_t>(i)] = merged.columns(i * f.C / 3, f.C / 3);
    else
      a.out = merged;
    short_conv(ex, a);
  };
  c.reference = [&](const Exec& ex, const EffectCase::At& at) {
    const SequenceCase saved = s;
    for (int n : skipped) s.slot[n * s.columns] = -1, s.accepted[n] = 1;
    for (int q : skipped_snapshots) s.snapshot[q * 3 + 2] = -1;
    c.call(ex, at);
    s.slot = saved.slot, s.accepted = saved.accepted, s.snapshot = saved.snapshot;
  };
  c.faults = faults;
  c.run("short_conv", short_conv_variants());
}

TEST(ShortConvCuda, EqualsTheReferenceForEveryLengthAroundTheTilesTapsAndForms) {
  for (int64_t W : {2, 3, 4})
    for (bool split : {false, true})
      for (int64_t C : {3, 24, 96, 4608}) {
        SequenceCase s({{.len = 1, .slot = 3},
                        {.len = 2, .slot = 1, .fresh = true},
                        {.len = 0, .slot = 4},
                        {.len = 3, .slot = 2},
                        {.len = 17, .slot = 5},
                        {.len = 70, .slot = 7, .fresh = true}},
                       {{.len = 1, .slot = 6}, {.len = 1, .slot = 8, .fresh = true}});
        check<bf16>({.W = W, .C = C, .tail = 5, .split = split}, s);
        check<float>({.W = W, .C = C, .tail = 0, .column = 3, .split = split, .silu = false}, s);
        check<bf16>({.W = W, .C = C, .tail = 1, .column = 8, .split = split}, s);
      }
}

TEST(ShortConvCuda, VerificationRowsStartAtTheAcceptedRowAndKeepTheirInputs) {
  for (int accepted : {1, 2, 4}) {
    SequenceCase s({{.len = 9, .slot = 9, .accepted = accepted}},
                   {{.len = 4, .slot = 3, .accepted = accepted},
                    {.len = 1, .slot = 1, .accepted = 4},
                    {.len = 3, .slot = 2, .accepted = 2, .fresh = true},
                    {.len = 0, .slot = 5},
                    {.len = 2, .slot = -1}},
                   4);
    check<bf16>({.C = 48, .tail = 3}, s);
    check<bf16>({.C = 48, .split = true}, s);
  }
}

// Tiles of so few tokens have eight: sequences begin one, two and three tokens before the end of one, and at its end.
TEST(ShortConvCuda, ASequenceThatBeginsAtTheEndOfATileReadsItsWindowBeforeItIsWritten) {
  SequenceCase s({{.len = 7, .slot = 3},
                  {.len = 23, .slot = 1},
                  {.len = 31, .slot = 2},
                  {.len = 1, .slot = 4},
                  {.len = 2, .slot = 5},
                  {.len = 64, .slot = 6}},
                 {{.len = 1, .slot = 7}}, 1, {{.sequence = 1, .position = 2, .slot = 8}});
  check<bf16>({.C = 4608, .tail = 5}, s);
  check<bf16>({.W = 3, .C = 48, .split = true}, s);
  check<float>({.C = 21}, s);
}

TEST(ShortConvCuda, SnapshotsHoldTheWindowAfterTheirToken) {
  SequenceCase s({{.len = 1, .slot = 3}, {.len = 70, .slot = 1}}, {{.len = 1, .slot = 6}}, 1,
                 {{.sequence = 0, .position = 1, .slot = 7},
                  {.sequence = 1, .position = 2, .slot = 8},
                  {.sequence = 1, .position = 64, .slot = 9},
                  {}});
  check<bf16>({.C = 96}, s);
  check<float>({.C = 21, .split = true}, s);
}

uint32_t bit(Fault f) {
  return static_cast<uint32_t>(f);
}

TEST(ShortConvCuda, ARowAtFaultIsSkippedWholeAndNobodyElseIsTouched) {
  SequenceCase s({{.len = 20, .slot = 3}, {.len = 5, .slot = 12}, {.len = 33, .slot = 3}, {.len = 6, .slot = 0}},
                 {{.len = 1, .slot = 4, .accepted = 3},
                  {.len = 1, .slot = 5},
                  {.len = 2, .slot = 6, .accepted = 0},
                  {.len = 3, .slot = 7},
                  {.len = 1, .slot = 5}},
                 2);
  check<bf16>({.C = 48, .tail = 2}, s,
              bit(Fault::slot) | bit(Fault::shared_slot) | bit(Fault::accepted) | bit(Fault::length),
              {1, 2, 3, 4, 6, 7, 8});
}

TEST(ShortConvCuda, ASnapshotAtFaultIsSkipped) {
  SequenceCase s({{.len = 20, .slot = 3}, {.len = 5, .slot = 1}}, {{.len = 1, .slot = 6}}, 1,
                 {{.sequence = 0, .position = 21, .slot = 7},
                  {.sequence = 1, .position = 3, .slot = 6},
                  {.sequence = 2, .position = 1, .slot = 8},
                  {.sequence = 1, .position = 4, .slot = 9},
                  {.sequence = 1, .position = 5, .slot = 9}});
  check<bf16>({.C = 48}, s, bit(Fault::snapshot) | bit(Fault::shared_slot), {}, {0, 1, 2, 4});
}

// Merged and split outputs are the same bits, whatever the bound against the reference.
TEST(ShortConvCuda, SplitOutputsHaveTheBitsOfTheMergedOne) {
  constexpr int64_t T = 300, C = 96;
  CudaExec ex;
  std::vector<bf16> host(T * C);
  Rng rng(5);
  std::normal_distribution<float> normal;
  for (bf16& v : host) v = to_bf16(normal(rng));
  std::vector<float> taps(4 * C);
  for (float& v : taps) v = normal(rng);
  SequenceCase s({{.len = 200, .slot = 1}}, {{.len = 1, .slot = 2}});
  s.fill();
  auto device = [&](const void* data, int64_t bytes) {
    auto b = std::make_unique<Buffer>(kCuda, bytes);
    copy_async(ex.stream(), b->data(), data, bytes);
    return b;
  };
  const auto x = device(host.data(), T * C * 2), w = device(taps.data(), 4 * C * 4), cu = device(s.cu.data(), 12),
             slot = device(s.slot.data(), 8), accepted = device(s.accepted.data(), 8),
             fresh = device(s.fresh.data(), 2);
  std::vector<std::vector<bf16>> results, states;
  for (bool split : {false, true}) {
    Buffer out(kCuda, T * C * 2), state(kCuda, 3 * 3 * C * 2);
    fill_async(ex.stream(), state.data(), 0x3f, state.bytes());
    ShortConvArgs a{.x = x->view(DType::bf16, {T, C}),
                    .weight = w->view<float>({4, C}),
                    .seq = {.cu = cu->view<int32_t>({3}),
                            .slot = slot->view<int32_t>({2, 1}),
                            .accepted = accepted->view<int32_t>({2}),
                            .fresh = fresh->view<uint8_t>({2}),
                            .n_prefill = 1,
                            .n_decode = 1,
                            .max_len = 200},
                    .state = state.view(DType::bf16, {3, 3, C})};
    const AnyView merged = out.view(DType::bf16, {T, C});
    if (split)
      for (int64_t i = 0; i < 3; ++i) a.split[static_cast<size_t>(i)] = merged.columns(i * C / 3, C / 3);
    else
      a.out = merged;
    short_conv(ex, a);
    results.emplace_back(T * C);
    states.emplace_back(3 * 3 * C);
    copy_async(ex.stream(), results.back().data(), out.data(), T * C * 2);
    copy_async(ex.stream(), states.back().data(), state.data(), state.bytes());
    ex.stream().synchronize();
  }
  EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), static_cast<size_t>(T * C * 2)), 0);
  EXPECT_EQ(std::memcmp(states[0].data(), states[1].data(), states[0].size() * 2), 0);
}

}  // namespace
}  // namespace kdelta::test
