// What validate_sequences lets through and what it refuses, beyond the cases that the tests of kda and short_conv run
// through their op.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <vector>

#include "kdelta/core/error.h"
#include "kdelta/ops/common/sequences.h"

namespace {
int64_t allocations = 0;
}

// Counts every allocation of this program. Not inlined: g++ 12 would see free() on memory of new and warn.
__attribute__((noinline)) void* operator new(size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept {
  std::free(p);
}
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept {
  std::free(p);
}

namespace kdelta {
namespace {

// N rows of `len` tokens with `columns` slots each: row n owns slots 1 + n * columns ...
struct Step {
  Step(int64_t N, int64_t columns, int len, int prefill) {
    for (int64_t n = 0; n < N; ++n) {
      cu.push_back(cu.back() + len);
      for (int64_t c = 0; c < columns; ++c) slot.push_back(static_cast<int32_t>(1 + n * columns + c));
      accepted.push_back(1);
      fresh.push_back(0);
    }
    s.slot = {slot.data(), {N, columns}};
    s.cu = {cu.data(), {N + 1}};
    s.accepted = {accepted.data(), {N}};
    s.fresh = {fresh.data(), {N}};
    s.n_prefill = prefill;
    s.n_decode = static_cast<int>(N) - prefill;
  }
  std::string error(int64_t slots, SlotColumns columns = SlotColumns::all) const {
    try {
      expect_sequences(s, "op");
      validate_sequences(s, cu.back(), slots, "op", columns);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  std::vector<int32_t> cu{0}, slot, accepted;
  std::vector<uint8_t> fresh;
  Sequences s;
};

TEST(Sequences, AStepOfUsualSizeIsCheckedWithoutAllocating) {
  const Step step(64, 2, 2, 8);
  step.error(1000);
  const int64_t before = allocations;
  expect_sequences(step.s, "a name longer than a small string");
  validate_sequences(step.s, step.cu.back(), 1000, "a name longer than a small string");
  EXPECT_EQ(allocations, before);
}

TEST(Sequences, AStepOfManySlotsIsCheckedInFull) {
  Step step(400, 3, 3, 0);
  EXPECT_EQ(step.error(1201), "");
  EXPECT_EQ(step.error(1200), "op: slot[399, 2] is 1200, expected 1..1199");
  step.slot[3 * 399 + 1] = 5;
  EXPECT_EQ(step.error(1201), "op: slot 5 is named by row 1 and row 399");
}

TEST(Sequences, OnlyColumnsThatAreReadOrWrittenAreChecked) {
  Step step(2, 4, 2, 1);
  step.slot[2] = step.slot[3] = -7;          // prefill row: columns 2 and 3
  step.slot[4 + 2] = step.slot[4 + 3] = 99;  // decode row of 2 tokens: columns 2 and 3
  EXPECT_EQ(step.error(9), "");
  step.accepted[0] = 3;
  EXPECT_EQ(step.error(9), "op: slot[0, 2] is -7, expected 1..8");
  step.fresh[0] = 1;
  EXPECT_EQ(step.error(9), "") << "a fresh row reads no state";
  step.accepted[1] = 4;
  EXPECT_EQ(step.error(9), "op: slot[1, 3] is 99, expected 1..8");
}

TEST(Sequences, AnOpWithOneSlotPerSequenceChecksColumnZeroOnly) {
  Step step(2, 4, 2, 0);
  step.slot[1] = 99;
  EXPECT_EQ(step.error(9), "op: slot[0, 1] is 99, expected 1..8");
  EXPECT_EQ(step.error(9, SlotColumns::first), "");
  step.slot[4] = 1;
  EXPECT_EQ(step.error(9, SlotColumns::first), "op: slot 1 is named by row 0 and row 1");
}

TEST(Sequences, RowsWithoutTokensAndPaddedRowsMayHoldAnything) {
  Step step(3, 1, 1, 0);
  step.slot[1] = -1;
  step.accepted[1] = -5;
  EXPECT_EQ(step.error(4), "");
  step.cu = {0, 1, 2, 2};
  step.slot[2] = 77;
  step.accepted[2] = 0;
  EXPECT_EQ(step.error(4), "");
}

TEST(Sequences, TokensOfRowsThatAreNeitherPrefillNorDecodeAreRefused) {
  Step step(3, 1, 1, 1);
  step.s.n_decode = 1;
  EXPECT_EQ(step.error(9), "op: rows from 2 on hold tokens but are neither prefill nor decode");
  step.s.n_decode = 3;
  EXPECT_EQ(step.error(9), "op: 1 prefill and 3 decode sequences of 3");
}

TEST(Sequences, BoundariesMustStartAtZeroRiseAndFit) {
  Step step(2, 1, 4, 2);
  step.cu = {1, 4, 8};
  EXPECT_EQ(step.error(9), "op: cu[0] is 1, expected 0");
  step.cu = {0, 9, 8};
  EXPECT_EQ(step.error(9), "op: cu[2] is 8 after 9, expected no decrease");
  step.cu = {0, 4, 9};
  EXPECT_THAT([&] { validate_sequences(step.s, 8, 9, "op"); },
              testing::ThrowsMessage<Error>("op: cu ends at 9, past the 8 rows"));
}

TEST(Sequences, ShapesAreRefusedByName) {
  Step step(2, 1, 1, 2);
  Sequences s = step.s;
  auto message = [&](Sequences bad) {
    try {
      expect_sequences(bad, "op");
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  s.cu.shape = Shape{2};
  EXPECT_EQ(message(s), "op: cu: shape [2], expected [3]");
  s = step.s, s.slot.shape = Shape{2};
  EXPECT_EQ(message(s), "op: slot: shape [2], expected [N, columns]");
  s = step.s, s.accepted.data = nullptr;
  EXPECT_EQ(message(s), "op: accepted: null pointer for shape [2]");
  s = step.s, s.fresh.stride[0] = 2;
  EXPECT_EQ(message(s), "op: fresh: stride 2 on the last axis, expected 1");
  s = step.s, s.snapshot = {step.cu.data(), {1, 2}};
  EXPECT_EQ(message(s), "op: snapshot: shape [1, 2], expected [1, 3]");
}

}  // namespace
}  // namespace kdelta
