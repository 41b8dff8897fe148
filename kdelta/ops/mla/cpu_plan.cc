#include "kdelta/ops/mla/cpu_plan.h"

#include <algorithm>
#include <numeric>

namespace kdelta {
namespace {

// Hands out arrays of floats, each at a multiple of 64 bytes; with a null base it only counts.
class Layout {
 public:
  explicit Layout(void* base) : base_(static_cast<float*>(base)) {}
  float* take(int64_t floats) {
    float* p = base_ == nullptr ? nullptr : base_ + used_;
    used_ += mla_round_up(floats, 16);
    return p;
  }
  int64_t bytes() const { return used_ * 4; }

 private:
  float* base_;
  int64_t used_ = 0;
};

MlaPrefillWork prefill_work(const MlaWidths& w, const MlaDesc& d, int64_t rows, Layout& layout) {
  MlaPrefillWork p{};
  p.weight = layout.take(d.latent * w.kv);
  p.block = layout.take(kMlaBlock * d.latent);
  p.kv = layout.take(kMlaBlock * w.kv);
  p.k = layout.take(kMlaBlock * w.query);
  p.v = layout.take(kMlaBlock * w.value);
  p.score = layout.take(kMlaBlock * kMlaBlock);
  p.length = layout.take(kMlaBlock);
  p.scale = layout.take(kMlaBlock);
  p.q = layout.take((d.nope + d.rope) * rows);
  p.acc = layout.take(w.value * rows);
  p.max = layout.take(rows);
  p.sum = layout.take(rows);
  return p;
}

MlaDecodeWork decode_work(const MlaWidths& w, Layout& layout) {
  MlaDecodeWork p{};
  p.block = layout.take(kMlaBlock * w.cache);
  p.score = layout.take(kMlaHeads * kMlaBlock);
  p.max = layout.take(kMlaHeads);
  p.sum = layout.take(kMlaHeads);
  p.scale = layout.take(kMlaHeads);
  p.weight = layout.take(8 * w.latent);
  return p;
}

char* advance(void* p, int64_t bytes) {
  return static_cast<char*>(p) + bytes;
}

}  // namespace

MlaPlan mla_plan(const MlaDesc& d) {
  MlaPlan plan;
  plan.width = {.kv = mla_round_up(d.nope + d.value, kMlaPad),
                .value = mla_round_up(d.value, 8),
                .query = mla_round_up(d.nope + d.rope, 16),
                .cache = mla_round_up(d.latent + d.rope, kMlaPad),
                .latent = mla_round_up(d.latent, kMlaPad)};
  // lat is summed in whole vectors over the columns of the block.
  plan.width.cache = std::max(plan.width.cache, plan.width.latent);
  plan.prefill_rows = std::min(mla_round_up(std::max<int64_t>(d.max_len, 1), kMlaBlock), kMlaPrefillRows);
  plan.decode_rows = std::clamp<int64_t>(d.tokens, 1, kMlaDecodeRows);
  Layout prefill(nullptr), decode(nullptr);
  prefill_work(plan.width, d, plan.prefill_rows, prefill);
  decode_work(plan.width, decode);
  plan.prefill_bytes = prefill.bytes();
  plan.decode_bytes = decode.bytes();
  plan.shared_bytes = 4 * plan.decode_rows * d.heads * (plan.width.cache + plan.width.latent);
  return plan;
}

// The schedules run one after the other and share the memory.
int64_t mla_cpu_scratch(const MlaDesc& d) {
  const MlaPlan plan = mla_plan(d);
  return std::max(d.target.threads * plan.prefill_bytes, plan.shared_bytes + d.target.threads * plan.decode_bytes);
}

MlaPrefillWork MlaPlan::prefill(const MlaDesc& d, void* scratch, int rank) const {
  Layout layout(advance(scratch, rank * prefill_bytes));
  return prefill_work(width, d, prefill_rows, layout);
}

MlaDecodeWork MlaPlan::decode(void* scratch, int rank) const {
  Layout layout(advance(scratch, shared_bytes + rank * decode_bytes));
  return decode_work(width, layout);
}

float* MlaPlan::absorbed(void* scratch) const {
  return static_cast<float*>(scratch);
}
float* MlaPlan::lat(const MlaDesc& d, void* scratch) const {
  return absorbed(scratch) + decode_rows * d.heads * width.cache;
}

int64_t mla_task_rows(const MlaPlan& plan, const MlaDesc& d, int64_t sequences) {
  const int64_t tasks = std::max<int64_t>(sequences * d.heads, 1), pieces = (d.target.threads + tasks - 1) / tasks;
  return std::min(plan.prefill_rows, mla_round_up((d.max_len + pieces - 1) / pieces, kMlaBlock));
}

MlaRuns mla_runs(const PagedSequences& seq, const MlaBatch& batch, int64_t most) {
  MlaRuns out;
  const int32_t* cu = seq.cu.data;
  int64_t n = seq.n_prefill;
  for (int64_t t = batch.first; t < batch.first + batch.rows;) {
    while (cu[n + 1] <= t) ++n;
    const int64_t end = std::min<int64_t>({cu[n + 1], batch.first + batch.rows, t + most});
    out.run[out.count++] = {.n = n, .first = t, .tokens = end - t, .length = seq.context.data[n] + t - cu[n] + 1};
    t = end;
  }
  return out;
}

int64_t mla_task_heads(const MlaDesc& d, int64_t runs) {
  const int64_t threads = d.target.threads, step = threads / std::gcd(threads, std::max<int64_t>(runs, 1));
  const int64_t least = (d.heads + kMlaHeads - 1) / kMlaHeads;
  const int64_t groups = runs >= 4 * threads ? least : std::min(d.heads, mla_round_up(least, step));
  return (d.heads + groups - 1) / groups;
}

}  // namespace kdelta
