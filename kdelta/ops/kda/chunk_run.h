// One head of a prefill sequence through the chunk schedule: loads the state, walks chunks and panels, stores states
// and snapshots. A Form multiplies with the state: pack_rows, pack_keys, pack_state, read_state, write_state, and a
// Session around a task.
#pragma once

#include "kdelta/ops/kda/chunk_kernel.h"
#include "kdelta/ops/kda/cpu_kernel.h"

namespace kdelta::kda_chunk {
inline namespace KDELTA_KDA_ISA {

// 16 x 16 numbers, rows `in_stride` apart, to their transpose.
template <class From, class To>
KDELTA_INLINE void transpose_square(const From* in, int64_t in_stride, To* out, int64_t out_stride) {
  __m512i r[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_castps_si512(V::load(in + i * in_stride).v);
  transpose16(r);
  for (int i = 0; i < 16; ++i) V{_mm512_castsi512_ps(r[i])}.store(out + i * out_stride);
}

// One head of one prefill sequence.
template <class Form, class S>
class Run {
 public:
  Run(const KdaArgs& a, const Task& task, Scratch& w)
      : a_(a),
        task_(task),
        w_(w),
        K_(w.rows.K),
        Kp_(w.rows.Kp),
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
      src = kda_cpu::state_rows<S>(a_, task_, *a_.seq.slot.at(task_.n, kda_cpu::start_column(a_, task_.n)));
    for (int64_t c = 0; c < width_; c += W) {
      const Panel p = w_.panel(c);
      if (src == nullptr)
        for (int64_t i = 0; i < Kp_ * W; i += 16) V::zero().store(p.s + i);
      else if (squares(c))
        for (int64_t d = 0; d < K_; d += 16)
          for (int64_t j = 0; j < W; j += 16) transpose_square(src + (c + j) * K_ + d, K_, p.s + d * W + j, W);
      else
        kda_cpu::load_panel<V>(src + c * K_, left(c), K_, Kp_, W, p.s);
      Form::pack_state(p, Kp_);
    }
  }

  // A panel is made of whole squares of the state.
  bool squares(int64_t column) const { return K_ % 32 == 0 && left(column) == W; }

  void store(const Panel& p, int64_t column, int64_t slot) {
    S* to = kda_cpu::state_rows<S>(a_, task_, slot) + column * K_;
    if (!squares(column)) return kda_cpu::store_panel<V>(p.s, left(column), K_, W, to);
    for (int64_t j = 0; j < W; j += 16)
      for (int64_t d = 0; d < K_; d += 16) transpose_square(p.s + d * W + j, W, to + j * K_ + d, K_);
  }

  void chunk(int64_t first, int64_t count) {
    const int64_t blocks = (count + C - 1) / C;
    auto tokens = [&](int64_t b) { return count - b * C < C ? count - b * C : C; };
    for (int64_t b = 0; b < blocks; ++b) {
      make_block<Form>(a_, task_, begin_ + first + b * C, tokens(b), w_.rows, w_.block[b]);
      copy_values(begin_ + first + b * C, tokens(b), w_.v + b * C * w_.Vp);
    }
    for (int64_t c = 0; c < width_; c += W) {
      for (int64_t b = 0; b < blocks; ++b)
        block(w_.block[b], w_.panel(c), first + b * C, tokens(b), w_.v + b * C * w_.Vp, c);
      if (sizeof(S) == 2) {
        kda_cpu::round_to_pool<V, S>(w_.panel(c).s, Kp_ * W);
        Form::pack_state(w_.panel(c), Kp_);
      }
    }
  }

  // Rows of v to a block of the chunk, zeros behind them. Where they lie, rows of one head are so far apart that panels
  // would meet them in no near cache.
  void copy_values(int64_t t, int64_t count, bf16* to) {
    if (count < C || width_ < w_.Vp) std::memset(to, 0, static_cast<size_t>(C * w_.Vp) * sizeof(bf16));
    for (int64_t i = 0; i < count; ++i) {
      const bf16* v = a_.v.at<const bf16>(t + i, task_.h) + task_.v_begin;
      int64_t e = 0;
      for (; e + W <= width_; e += W) _mm512_storeu_si512(to + i * w_.Vp + e, _mm512_loadu_si512(v + e));
      std::memcpy(to + i * w_.Vp + e, v + e, static_cast<size_t>(width_ - e) * sizeof(bf16));
    }
  }

  // Tokens [t, t + count) of the sequence with the values v. Outputs go where they belong; the lines are asked for
  // early, because a store that waits for its line holds up the loads behind it.
  void block(const Block& b, const Panel& p, int64_t t, int64_t count, const bf16* v, int64_t column) {
    bf16* out = a_.out.at<bf16>(begin_ + t, task_.h) + task_.v_begin + column;
    const int64_t stride = a_.out.stride[0], channels = left(column);
    for (int64_t i = 0; i < count; ++i) __builtin_prefetch(out + i * stride, 1);
    const bool whole = count == C && channels == W;
    Form::read_state(b, p, Kp_, {v + column, whole ? out : w_.out, w_.Vp, whole ? stride : W}, w_.changes, w_.read);
    for (int64_t i = 0; !whole && i < count; ++i)
      std::memcpy(out + i * stride, w_.out + i * W, static_cast<size_t>(channels) * sizeof(bf16));
    for (int64_t i = 1; i < C; ++i)
      kda_cpu::for_snapshots(a_, task_.n, t + i, [&](int64_t slot) { snapshot(p, t, i, column, slot); });
    Form::write_state(b, w_.changes, p, Kp_);
    kda_cpu::for_snapshots(a_, task_.n, t + C, [&](int64_t slot) { store(p, column, slot); });
  }

  // The state after `count` < C tokens of a block, as a sequence that ends there has it.
  void snapshot(const Panel& p, int64_t t, int64_t count, int64_t column, int64_t slot) {
    make_block<Form>(a_, task_, begin_ + t, count, w_.rows, w_.snap_block);
    V sum[2] = {V::zero(), V::zero()};
    for (int64_t i = 0; i < C; i += kHalf) {
      Half y;
      for (int64_t r = 0; r < kHalf; ++r)
        for (int64_t j = 0; j < 2; ++j)
          y.v[r][j] = i + r < count ? V::load(w_.changes.u + (i + r) * W + 16 * j) : V::zero();
      store_changes(y, i, sum, w_.snap_changes.u);
    }
    for (int64_t j = 0; j < 2; ++j) sum[j].store(w_.snap_changes.sum + 16 * j);
    for (int64_t i = 0; i < Kp_ * W; i += 16) V::load(p.s + i).store(w_.snap.s + i);
    Form::write_state(w_.snap_block, w_.snap_changes, w_.snap, Kp_);
    store(w_.snap, column, slot);
  }

  const KdaArgs& a_;
  const Task& task_;
  Scratch& w_;
  int64_t K_, Kp_, width_, begin_, len_;
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
