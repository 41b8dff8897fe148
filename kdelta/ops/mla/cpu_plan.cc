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
  p.scale = layout.take(kMlaHeads);
  p.weight = layout.take(8 * w.latent);
  return p;
}

MlaSums sums_of(const MlaWidths& w, int64_t rows, int64_t step, Layout& layout) {
  MlaSums p{};
  p.lat = layout.take(rows * w.latent);
  p.max = layout.take(rows);
  p.sum = layout.take(rows);
  p.step = step;
  return p;
}

// What the threads of the decode schedule share.
struct Shared {
  float* absorbed;
  MlaSums sums, part;  // of all rows; of the first part that waits
  int64_t part_floats;
};
Shared shared(const MlaPlan& plan, const MlaDesc& d, Layout& layout) {
  Layout one(nullptr);
  sums_of(plan.width, plan.part_rows, 0, one);
  Shared s{};
  s.absorbed = layout.take(plan.decode_rows * d.heads * plan.width.cache);
  s.sums = sums_of(plan.width, plan.decode_rows * d.heads, d.heads, layout);
  s.part_floats = one.bytes() / 4;
  Layout parts(layout.take(plan.parts * s.part_floats));
  s.part = sums_of(plan.width, plan.part_rows, 0, parts);
  return s;
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
  plan.part_rows = std::min(kMlaHeads, plan.decode_rows * d.heads);
  plan.parts = d.max_context > kMlaChunk ? 8 * d.target.threads : 0;
  Layout prefill(nullptr), decode(nullptr), all(nullptr);
  prefill_work(plan.width, d, plan.prefill_rows, prefill);
  decode_work(plan.width, decode);
  plan.prefill_bytes = prefill.bytes();
  plan.decode_bytes = decode.bytes();
  shared(plan, d, all);
  plan.shared_bytes = all.bytes();
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
MlaSums MlaPlan::sums(const MlaDesc& d, void* scratch) const {
  Layout layout(scratch);
  return shared(*this, d, layout).sums;
}
MlaSums MlaPlan::part(const MlaDesc& d, void* scratch, int64_t index, int64_t task_heads) const {
  Layout layout(scratch);
  const Shared s = shared(*this, d, layout);
  const int64_t at = index * s.part_floats;
  return {s.part.lat + at, s.part.max + at, s.part.sum + at, task_heads};
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

namespace {

// Heads of one task when each group of heads has `pieces` of equal size: as many as fit, in a number of tasks that
// divides among the threads.
int64_t task_heads(const MlaDesc& d, int64_t pieces) {
  const int64_t threads = d.target.threads, step = threads / std::gcd(threads, pieces);
  const int64_t least = (d.heads + kMlaHeads - 1) / kMlaHeads;
  const int64_t groups = pieces >= 4 * threads ? least : std::min(d.heads, mla_round_up(least, step));
  return (d.heads + groups - 1) / groups;
}

}  // namespace

MlaTasks mla_tasks(const PagedSequences& seq, const MlaBatch& batch, const MlaDesc& d) {
  const MlaRuns whole = mla_runs(seq, batch, batch.rows);
  int64_t pieces = 0;
  for (int64_t r = 0; r < whole.count; ++r) pieces += std::max<int64_t>(whole.run[r].length / kMlaChunk, 1);
  MlaTasks tasks;
  tasks.all_heads = d.heads;
  tasks.heads = task_heads(d, std::max<int64_t>(pieces, 1));
  tasks.groups = (d.heads + tasks.heads - 1) / tasks.heads;
  tasks.runs = mla_runs(seq, batch, kMlaHeads / tasks.heads);
  tasks.begin[0] = 0;
  for (int64_t r = 0; r < tasks.runs.count; ++r)
    tasks.begin[r + 1] = tasks.begin[r] + tasks.groups * tasks.runs.run[r].chunks();
  return tasks;
}

MlaTask MlaTasks::at(int64_t i) const {
  int64_t run = 0;
  while (begin[run + 1] <= i) ++run;
  const int64_t chunks = runs.run[run].chunks(), head = (i - begin[run]) / chunks * heads;
  return {run, head, std::min(heads, all_heads - head), (i - begin[run]) % chunks};
}

}  // namespace kdelta
