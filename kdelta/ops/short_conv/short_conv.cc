#include "kdelta/ops/short_conv/short_conv.h"

#include <algorithm>

#include "kdelta/ops/common/overlap.h"
#include "kdelta/ops/short_conv/variants.h"

namespace kdelta {
const char* short_conv_cuda_refuse(const ShortConvDesc& d) {
  return d.sequences > 32767 ? "more than 32767 sequences" : nullptr;
}

namespace {

constexpr ShortConvVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  {#name, needs, refuse, scratch, KDELTA_RUN(needs, short_conv_##name)},
#include "kdelta/ops/short_conv/variants.inc"
#undef KDELTA_VARIANT
};

[[noreturn]] void refuse(const char* argument, const std::string& what) {
  fail(ErrorCode::invalid_argument, "short_conv: ", argument, ": ", what);
}

void check_state(const ShortConvArgs& a, int64_t W, int64_t C) {
  if (a.state.shape.rank != 3) refuse("state", str("shape ", to_string(a.state.shape), ", expected [slots, R, C]"));
  const int64_t R = a.state.dim(1), least = W - 1 + a.seq.columns() - 1;
  if (R < least)
    refuse("state", str(R, " rows a slot, expected >= ", least, " for ", W, " taps and ", a.seq.columns(), " columns"));
  expect_activation(a.state, {a.state.dim(0), R, C}, "short_conv: state");
  expect_dtype(a.state.dtype, {a.x.dtype}, "short_conv: state");
  if (a.state.stride[1] != C)
    refuse("state", str("stride ", a.state.stride[1], " between rows of a slot, expected ", C));
}

void check_out(const ShortConvArgs& a, int64_t T, int64_t C) {
  const auto nulls = std::count_if(a.split.begin(), a.split.end(), [](const AnyView& v) { return v.shape.rank == 0; });
  const bool merged = a.out.shape.rank != 0;
  if (merged ? nulls != 3 : nulls != 0) refuse("out", "expected either the merged output or all three of split");
  if (merged) {
    expect_activation(a.out, {T, C}, "short_conv: out");
    expect_dtype(a.out.dtype, {a.x.dtype}, "short_conv: out");
    return;
  }
  if (C % 3 != 0) refuse("split", str(C, " channels are not divisible by 3"));
  for (const AnyView& part : a.split) {
    expect_activation(part, {T, C / 3}, "short_conv: split");
    expect_dtype(part.dtype, {a.x.dtype}, "short_conv: split");
  }
}

// Tokens are read again under later taps, and the tiles run in any order.
void check_overlaps(const ShortConvArgs& a) {
  expect_apart(a.out, a.x, "short_conv: out", "x");
  expect_apart(a.out, a.state, "short_conv: out", "state");
  for (size_t i = 0; i < a.split.size(); ++i) {
    expect_apart(a.split[i], a.x, "short_conv: split", "x");
    expect_apart(a.split[i], a.state, "short_conv: split", "state");
    for (size_t j = 0; j < i; ++j) expect_apart(a.split[i], a.split[j], "short_conv: split", "another part");
  }
}

void check(const ShortConvArgs& a) {
  if (a.x.shape.rank != 2 || a.x.dim(1) == 0) refuse("x", str("shape ", to_string(a.x.shape), ", expected [T, C]"));
  const int64_t T = a.x.dim(0), C = a.x.dim(1);
  expect_activation(a.x, {T, C}, "short_conv: x");
  if (a.weight.shape.rank != 2 || a.weight.dim(0) < 2 || a.weight.dim(0) > 4)
    refuse("weight", str("shape ", to_string(a.weight.shape), ", expected [W, C] with 2 to 4 taps"));
  expect_view(a.weight, {a.weight.dim(0), C}, "short_conv: weight");
  expect_sequences(a.seq, "short_conv");
  check_state(a, a.weight.dim(0), C);
  check_out(a, T, C);
}

}  // namespace

std::span<const ShortConvVariant> short_conv_variants() {
  return kVariants;
}

Cost short_conv_cost(const ShortConvArgs& a) {
  const double n = static_cast<double>(a.x.shape.numel()), C = static_cast<double>(a.x.dim(1));
  const double taps = static_cast<double>(a.weight.dim(0)), element = static_cast<double>(dtype_bytes(a.x.dtype));
  const double sequences = a.seq.n_prefill + a.seq.n_decode;
  return {.bytes = 2 * n * element + 4 * taps * C + 2 * sequences * (taps - 1) * C * element, .flops = 2 * taps * n};
}

void short_conv(const Exec& ex, const ShortConvArgs& args) {
  check(args);
  if (!ex.planning) check_overlaps(args);
  if (ex.device.kind == DeviceKind::cpu && !ex.planning)
    validate_sequences(args.seq, args.x.dim(0), args.state.dim(0), "short_conv", SlotColumns::first);
  const ShortConvDesc desc{target_of(ex), args.x.dim(0), args.x.dim(1), args.seq.count()};
  run_op(ex, "short_conv", short_conv_variants(), args, desc, short_conv_cost(args));
}

}  // namespace kdelta
