#include "kdelta/ops/kda/chunk_kernel.h"
#include "kdelta/ops/kda/cpu_kernel.h"

namespace kdelta {
namespace kda_chunk {
namespace {

// Tokens [count, end) of x become identities.
void pad_tokens(Tokens& x, int64_t count, int64_t end) {
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

template <class Operand>
void prepare_block(const Tokens& x, int64_t t, Scratch& w, Block& b) {
  for (int64_t i = 0; i < C; ++i) score_row(x, t + i, i, w.rows, b.low + i * C, b.mix + i * C);
  read_factors<Operand>(x, t, w.rows, b);
  write_factors<Operand>(x, t, C, b);
}

template <class Operand>
void pack_first_state(const Panel& p, int64_t Kp) {
  V sum[2] = {V::zero(), V::zero()};
  for (int64_t d = 0; Operand::kScaled && d < Kp; ++d)
    for (int64_t j = 0; j < 2; ++j) sum[j] = V::fma(V::load(p.s + d * W + 16 * j), V::load(p.s + d * W + 16 * j), sum[j]);
  pack_state<Operand>(p, Kp, sum);
}

// One head of one prefill sequence.
template <class Operand, class S>
class Run {
 public:
  Run(const KdaArgs& a, const Task& task, Scratch& w)
      : a_(a), task_(task), w_(w), x_(w.tokens), width_(task.v_end - task.v_begin), begin_(a.seq.cu.data[task.n]),
        len_(a.seq.cu.data[task.n + 1] - begin_) {}

  void all() {
    load_state();
    for (int64_t first = 0; first < len_; first += kKdaChunk) chunk(first, len_ - first < kKdaChunk ? len_ - first : kKdaChunk);
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
      pack_first_state<Operand>(p, x_.Kp);
    }
  }

  void store(const Panel& p, int64_t column, int64_t slot) {
    kda_cpu::store_panel<V>(p.s, left(column), x_.K, W, kda_cpu::state_rows<S>(a_, task_, slot) + column * x_.K);
  }

  void chunk(int64_t first, int64_t count) {
    const int64_t blocks = (count + C - 1) / C;
    kda_cpu::prepare<V>(a_, task_, begin_ + first, count, x_);
    pad_tokens(x_, count, blocks * C);
    for (int64_t b = 0; b < blocks; ++b) prepare_block<Operand>(x_, b * C, w_, w_.block[b]);
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
        pack_first_state<Operand>(w_.panel(c), x_.Kp);
      }
    }
    kda_cpu::write_out<V>(a_, task_, begin_ + first, count, x_);
  }

  // Tokens [t, t + C) of the chunk that starts at `first`.
  void block(const Block& b, const Panel& p, int64_t first, int64_t t, int64_t column) {
    float* out = x_.out + t * x_.Vp + column;
    read_state<Operand>(x_, b, p, t, x_.v + t * x_.Vp + column, w_.u, out);
    substitute(b, w_.u, out, x_.Vp);
    for (int64_t i = 1; i < C; ++i)
      kda_cpu::for_snapshots(a_, task_.n, first + t + i, [&](int64_t slot) { snapshot(p, t, i, column, slot); });
    write_state<Operand>(b, w_.u, p, x_.Kp);
    kda_cpu::for_snapshots(a_, task_.n, first + t + C, [&](int64_t slot) { store(p, column, slot); });
  }

  // The state after `count` < C tokens of a block: their changes are final, only kg and the decay end earlier.
  void snapshot(const Panel& p, int64_t t, int64_t count, int64_t column, int64_t slot) {
    write_factors<Operand>(x_, t, count, w_.snap_block);
    for (int64_t i = 0; i < C * W; i += 16) (i < count * W ? V::load(w_.u + i) : V::zero()).store(w_.snap_u + i);
    for (int64_t i = 0; i < x_.Kp * W; i += 16) V::load(p.s + i).store(w_.snap.s + i);
    write_state<Operand>(w_.snap_block, w_.snap_u, w_.snap, x_.Kp);
    store(w_.snap, column, slot);
  }

  const KdaArgs& a_;
  const Task& task_;
  Scratch& w_;
  Tokens& x_;
  int64_t width_, begin_, len_;
};

template <class Operand>
struct Chunk {
  using Scratch = kda_chunk::Scratch;
  template <class S>
  static void run(const KdaArgs& a, const Task& task, Scratch& w) {
    Run<Operand, S>(a, task, w).all();
  }
};

}  // namespace
}  // namespace kda_chunk

void kda_chunk_int16(const Exec& ex, const KdaArgs& args, const KdaDesc& d, void* scratch) {
  kda_cpu::run<simd::Avx512, kda_chunk::Chunk<kda_chunk::Fixed>>(ex, args, d, scratch);
}

void kda_chunk_bf16(const Exec& ex, const KdaArgs& args, const KdaDesc& d, void* scratch) {
  kda_cpu::run<simd::Avx512, kda_chunk::Chunk<kda_chunk::Bfloat>>(ex, args, d, scratch);
}

}  // namespace kdelta
