// The compiled kernels of kda, for choose(), tests and benchmarks. A row serves prefill and decode sequences of one
// call alike.
#pragma once

#include "kdelta/ops/common/op.h"
#include "kdelta/ops/kda/kda.h"

namespace kdelta {

struct KdaDesc {
  Target target;
  int64_t T = 0, N = 0, H = 0, K = 0, V = 0;
  DType activation = DType::bf16;
  int64_t records = 0;  // of a slot; 0: drafts have slots
  // What the CUDA rows ask besides.
  int64_t n_prefill = 0, snapshots = 0, longest = 0;
  bool exact = false;    // Options::exact
  bool aligned = false;  // every row of every operand begins at 16 bytes, and 64 rows span less than 2 GB
};

using KdaVariant = Variant<KdaArgs, KdaDesc>;
std::span<const KdaVariant> kda_variants();

// Scratch of all threads together.
int64_t kda_scan_scratch(const KdaDesc& d);
int64_t kda_chunk_scratch(const KdaDesc& d);
const char* kda_refuse_f32(const KdaDesc& d);
const char* kda_cuda_refuse(const KdaDesc& d);
const char* kda_cuda_chunk_refuse(const KdaDesc& d);
const char* kda_cuda_serial_refuse(const KdaDesc& d);
int64_t kda_cuda_chunk_scratch(const KdaDesc& d);
int64_t kda_cuda_serial_scratch(const KdaDesc& d);

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void kda_##name(const Exec&, const KdaArgs&, const KdaDesc&, void*);
#include "kdelta/ops/kda/variants.inc"
#undef KDELTA_VARIANT

// The kernels of kda_replay. Its row follows from kda's: the one of the same name, else the first that needs no more
// than kda's row does; on CUDA there is one.
using KdaReplayVariant = Variant<KdaReplayArgs, KdaDesc>;
std::span<const KdaReplayVariant> kda_replay_variants();

#define KDELTA_VARIANT(name, needs) void kda_replay_##name(const Exec&, const KdaReplayArgs&, const KdaDesc&, void*);
#include "kdelta/ops/kda/replay_variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
