// Checks and choice of kda_replay.
#include <algorithm>

#include "kdelta/ops/kda/variants.h"

namespace kdelta {
namespace {

constexpr KdaReplayVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs) {#name, needs, nullptr, nullptr, KDELTA_RUN(needs, kda_replay_##name)},
#include "kdelta/ops/kda/replay_variants.inc"
#undef KDELTA_VARIANT
};

[[noreturn]] void refuse(const std::string& what) {
  fail(ErrorCode::invalid_argument, "kda_replay: ", what);
}

void check(const KdaReplayArgs& a) {
  if (a.state.shape.rank != 4) refuse(str("state: shape ", to_string(a.state.shape), ", expected [slots, H, V, K]"));
  if (a.records.shape.rank != 4)
    refuse(str("records: shape ", to_string(a.records.shape), ", expected [slots, columns-1, H, 2K + V]"));
  const int64_t H = a.state.dim(1), V = a.state.dim(2), K = a.state.dim(3), width = 2 * K + V, N = a.slot.dim(0);
  expect_dtype(a.state.dtype, {DType::f32, DType::bf16}, "kda_replay: state");
  expect_view(a.state, a.state.shape, "kda_replay: state");
  if (a.state.stride[2] != K || a.state.stride[1] != V * K)
    refuse(str("state: head and value strides ", a.state.stride[1], " and ", a.state.stride[2], ", expected dense ",
               V * K, " and ", K));
  expect_view(a.records, {a.state.dim(0), a.records.dim(1), H, width}, "kda_replay: records");
  if (a.records.stride[2] != width || a.records.stride[1] != H * width)
    refuse(str("records: record and head strides ", a.records.stride[1], " and ", a.records.stride[2],
               ", expected dense ", H * width, " and ", width));
  expect_view(a.slot, {N}, "kda_replay: slot");
  expect_view(a.accepted, {N}, "kda_replay: accepted");
}

void validate(const KdaReplayArgs& a) {
  const int64_t columns = a.records.dim(1) + 1, slots = a.state.dim(0);
  for (int64_t n = 0; n < a.slot.dim(0); ++n) {
    const int32_t slot = a.slot.data[n], accepted = a.accepted.data[n];
    if (slot == -1) continue;
    if (slot < 1 || slot >= slots) refuse(str("slot[", n, "] is ", slot, ", expected 1..", slots - 1));
    if (accepted < 1 || accepted > columns) refuse(str("accepted[", n, "] is ", accepted, ", expected 1..", columns));
    const int32_t* other = std::find(a.slot.data, a.slot.data + n, slot);
    if (other != a.slot.data + n) refuse(str("slot ", slot, " is named by row ", other - a.slot.data, " and row ", n));
  }
}

// One instruction set for the updates of a sequence, whoever makes them. A CUDA device has one arithmetic.
const KdaReplayVariant& row_for(const KdaDesc& d, const Options& options) {
  if (d.target.device == DeviceKind::cuda) return choose("kda_replay", kda_replay_variants(), d, Options{});
  const KdaVariant& step = choose("kda", kda_variants(), d, options);
  for (const KdaReplayVariant& row : kVariants)
    if (std::string_view(row.name) == step.name) return row;
  KdaDesc limited = d;
  limited.target.isa = step.needs.isa;
  return choose("kda_replay", kda_replay_variants(), limited, Options{});
}

}  // namespace

std::span<const KdaReplayVariant> kda_replay_variants() {
  return kVariants;
}

void kda_replay(const Exec& ex, const KdaReplayArgs& a) {
  check(a);
  if (ex.planning) return;  // it needs no scratch
  // The contents of a CUDA device's arrays are not the host's to read: the kernel skips faulty rows.
  if (ex.device.kind == DeviceKind::cpu) validate(a);
  const int64_t N = a.slot.dim(0);
  const KdaDesc d{.target = target_of(ex),
                  .N = N,
                  .H = a.state.dim(1),
                  .K = a.state.dim(3),
                  .V = a.state.dim(2),
                  .records = a.records.dim(1)};
  const KdaReplayVariant& row = row_for(d, *ex.options);
  const double state = static_cast<double>(d.H * d.V * d.K * dtype_bytes(a.state.dtype)),
               records = static_cast<double>(d.records * d.H * (2 * d.K + d.V) * 4);
  if (ex.observer != nullptr)
    ex.observer->on_op("kda_replay", row.name, {.bytes = static_cast<double>(N) * (2 * state + records), .flops = 0});
  row.run(ex, a, d, nullptr);
}

}  // namespace kdelta
