// One head of a prefill sequence through the chunk schedule: loads the state, walks chunks and panels, stores states
// and snapshots. A Form multiplies with the state: read_factors, write_factors, pack_state, read_state, write_state,
// and a Session around a task.
#pragma once

#include "kdelta/ops/kda/chunk_kernel.h"
#include "kdelta/ops/kda/cpu_kernel.h"

namespace kdelta::kda_chunk {
inline namespace KDELTA_KDA_ISA {

// Tokens [count, end) of x become identities.
KDELTA_INLINE void pad_tokens(Tokens& x, int64_t count, int64_t end) {
  for (int64_t i = count; i < end; ++i) {
    for (int64_t d = 0; d < x.Kp; d += 16) {
      V::zero().store(x.q + i * x.Kp + d);
      V::zero().store(x.k + i * x.Kp + d);
      V::set1(1.0f).store(x.decay + i * x.Kp + d);
    }
    for (int64_t d = 0; d < x.Vp; d += 16) V::zero().store(x.v + i * x.Vp + d);
    x.beta[i] = x.qk[i] = 0;
  }
}

// One head of one prefill sequence.
template <class Form, class S>
class Run {
 public:
  Run(const KdaArgs& a, const Task& task, Scratch& w)
      : a_(a),
        task_(task),
        w_(w),
        x_(w.tokens),
        width_(task.v_end - task.v_begin),
        begin_(a.seq.cu.data[task.n]),
        len_(a.seq.cu.data[task.n + 1] - begin_) {}

  void all() {
    load_state();
    for (int64_t first = 0; first < len_; first += kKdaChunk)
      chunk(first, len_ - first < kKdaChunk ? len_ - first : kKdaChunk);
    for (int64_t c = 0; c < width_; c += W) store(w_.panel(c), c, *a_.seq.slot.at(task_.n, 0));
  }

 private:
  int64_t left(int64_t column) const { return width_ - column < W ? width_ - column : W; }

  void load_state() {
    const S* src = nullptr;
    if (a_.seq.fresh.data[task_.n] == 0)
      src = kda_cpu::state_rows<S>(a_, task_, *a_.seq.slot.at(task_.n, a_.seq.accepted.data[task_.n] - 1));
    for (int64_t c = 0; c < width_; c += W) {
      const Panel p = w_.panel(c);
      kda_cpu::load_panel<V>(src == nullptr ? src : src + c * x_.K, left(c), x_.K, x_.Kp, W, p.s);
      Form::pack_state(p, x_.Kp);
    }
  }

  void store(const Panel& p, int64_t column, int64_t slot) {
    kda_cpu::store_panel<V>(p.s, left(column), x_.K, W, kda_cpu::state_rows<S>(a_, task_, slot) + column * x_.K);
  }

  void chunk(int64_t first, int64_t count) {
    const int64_t blocks = (count + C - 1) / C;
    kda_cpu::prepare<V>(a_, task_, begin_ + first, count, x_);
    pad_tokens(x_, count, blocks * C);
    for (int64_t b = 0; b < blocks; ++b) prepare(b * C, w_.block[b]);
    // The next chunk's inputs travel while this one computes.
    const int64_t share = (kKdaChunk * W + kBlocks * width_ - 1) / (kBlocks * width_);
    int64_t ahead = begin_ + first + kKdaChunk;
    for (int64_t c = 0; c < width_; c += W) {
      for (int64_t b = 0; b < blocks; ++b) {
        block(w_.block[b], w_.panel(c), first, b * C, c);
        for (int64_t i = 0; i < share; ++i) kda_cpu::prefetch_token(a_, ahead++, task_.h);
      }
      if (sizeof(S) == 2) {
        kda_cpu::round_to_pool<V, S>(w_.panel(c).s, x_.Kp * W);
        Form::pack_state(w_.panel(c), x_.Kp);
      }
    }
    kda_cpu::write_out<V>(a_, task_, begin_ + first, count, x_);
  }

  void prepare(int64_t t, Block& b) {
    for (int64_t i = 0; i < C; ++i) score_row(x_, t + i, i, w_.rows, b.low + i * C, b.mix + i * C);
    Form::read_factors(x_, t, w_.rows, b);
    Form::write_factors(x_, t, C, b);
  }

  // Tokens [t, t + C) of the chunk that starts at `first`.
  void block(const Block& b, const Panel& p, int64_t first, int64_t t, int64_t column) {
    float* out = x_.out + t * x_.Vp + column;
    Form::read_state(x_, b, p, t, x_.v + t * x_.Vp + column, w_.u, out);
    substitute(b, w_.u, out, x_.Vp);
    for (int64_t i = 1; i < C; ++i)
      kda_cpu::for_snapshots(a_, task_.n, first + t + i, [&](int64_t slot) { snapshot(p, t, i, column, slot); });
    Form::write_state(b, w_.u, p, x_.Kp, w_);
    kda_cpu::for_snapshots(a_, task_.n, first + t + C, [&](int64_t slot) { store(p, column, slot); });
  }

  // The state after `count` < C tokens of a block: their changes are final, only kg and the decay end earlier.
  void snapshot(const Panel& p, int64_t t, int64_t count, int64_t column, int64_t slot) {
    Form::write_factors(x_, t, count, w_.snap_block);
    for (int64_t i = 0; i < C * W; i += 16) (i < count * W ? V::load(w_.u + i) : V::zero()).store(w_.snap_u + i);
    for (int64_t i = 0; i < x_.Kp * W; i += 16) V::load(p.s + i).store(w_.snap.s + i);
    Form::write_state(w_.snap_block, w_.snap_u, w_.snap, x_.Kp, w_);
    store(w_.snap, column, slot);
  }

  const KdaArgs& a_;
  const Task& task_;
  Scratch& w_;
  Tokens& x_;
  int64_t width_, begin_, len_;
};

template <class Form>
struct Chunk {
  using Scratch = kda_chunk::Scratch;
  template <class S>
  static void run(const KdaArgs& a, const Task& task, Scratch& w) {
    [[maybe_unused]] const typename Form::Session session;  // tile registers belong to a thread
    Run<Form, S>(a, task, w).all();
  }
};

}  // namespace KDELTA_KDA_ISA
}  // namespace kdelta::kda_chunk
