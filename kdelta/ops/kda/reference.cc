// The definition of kda: the recurrence token by token in fp64. The state is rounded to the pool's dtype after each
// decode token (a verification continues from what it stored, like that many single steps) and after each 64 tokens of
// a prefill. Of a decode token decay, key and change are taken as a record holds them, in fp32, whether it leaves one
// or not.
#include <cmath>
#include <vector>

#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/gated_norm/gated_norm.h"
#include "kdelta/ops/kda/decode_variants.h"
#include "kdelta/ops/kda/variants.h"
#include "kdelta/ops/short_conv/short_conv.h"

namespace kdelta {
namespace {

using Vector = std::vector<double>;

double element(const AnyConstView& x, int64_t i, int64_t j, int64_t k = 0) {
  const int64_t at = i * x.stride[0] + j * x.stride[1] + (x.shape.rank == 3 ? k : 0);
  return x.dtype == DType::f32 ? static_cast<const float*>(x.data)[at] : to_float(static_cast<const bf16*>(x.data)[at]);
}

void put(const AnyView& x, int64_t at, double value) {
  const float f = static_cast<float>(value);
  if (x.dtype == DType::f32)
    static_cast<float*>(x.data)[at] = f;
  else
    static_cast<bf16*>(x.data)[at] = to_bf16(f);
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}
double softplus(double x) {
  return std::fmax(x, 0) + std::log1p(std::exp(-std::fabs(x)));
}

Vector row(const AnyConstView& x, int64_t t, int64_t h, int64_t width) {
  Vector r(static_cast<size_t>(width));
  for (int64_t d = 0; d < width; ++d) r[static_cast<size_t>(d)] = element(x, t, h, d);
  return r;
}

Vector key(const KdaArgs& a, const AnyConstView& x, int64_t t, int64_t h, double scale) {
  Vector r = row(x, t, h, x.dim(2));
  double sum = 0;
  for (double e : r) sum += e * e;
  const double f = a.norm_kind == KdaNorm::l2 ? scale / std::sqrt(sum + 1e-6) : scale;
  for (double& e : r) e *= f;
  return r;
}

Vector decay(const KdaArgs& a, int64_t t, int64_t h) {
  Vector r = row(a.gate, t, h, a.q.dim(2));
  const double A = std::exp(static_cast<double>(*a.a_log.at(h)));
  for (size_t d = 0; d < r.size(); ++d) {
    const double z = r[d] + *a.dt_bias.at(h, static_cast<int64_t>(d));
    r[d] = std::exp(a.gate_kind == KdaGate::bounded ? static_cast<double>(a.lower_bound) * sigmoid(A * z)
                                                    : -A * softplus(z));
  }
  return r;
}

// A head's state as [V][K] in fp64, and where it is kept.
class Head {
 public:
  Head(const AnyView& pool, int64_t h)
      : pool_(pool), h_(h), K_(pool.dim(3)), V_(pool.dim(2)), s_(static_cast<size_t>(K_ * V_)) {}

  void load(int64_t slot) {
    for (int64_t i = 0; i < K_ * V_; ++i) s_[static_cast<size_t>(i)] = pool_element(slot, i);
  }
  void store(int64_t slot) const {
    for (int64_t i = 0; i < K_ * V_; ++i)
      put(pool_, slot * pool_.stride[0] + h_ * V_ * K_ + i, s_[static_cast<size_t>(i)]);
  }
  void round_to_pool() {
    for (double& s : s_) {
      const float f = static_cast<float>(s);
      s = pool_.dtype == DType::f32 ? f : to_float(to_bf16(f));
    }
  }

  void decay(const double* d) {
    for (int64_t v = 0; v < V_; ++v)
      for (int64_t i = 0; i < K_; ++i) at(v, i) *= d[i];
  }
  void change(const double* k, const double* u) {
    for (int64_t v = 0; v < V_; ++v)
      for (int64_t i = 0; i < K_; ++i) at(v, i) += u[v] * k[i];
  }
  double read(int64_t v, const Vector& x) const {
    double sum = 0;
    for (int64_t i = 0; i < K_; ++i) sum += s_[static_cast<size_t>(v * K_ + i)] * x[static_cast<size_t>(i)];
    return sum;
  }
  // The first `count` records of a slot.
  void replay(const View<float>& records, int64_t slot, int64_t count) {
    for (int64_t j = 0; j < count; ++j) {
      const float* r = records.at(slot, j, h_);
      const Vector all(r, r + 2 * K_ + V_);
      decay(all.data());
      change(all.data() + K_, all.data() + 2 * K_);
      round_to_pool();
    }
  }

 private:
  double& at(int64_t v, int64_t i) { return s_[static_cast<size_t>(v * K_ + i)]; }
  double pool_element(int64_t slot, int64_t i) const {
    const int64_t at = slot * pool_.stride[0] + h_ * V_ * K_ + i;
    return pool_.dtype == DType::f32 ? static_cast<const float*>(pool_.data)[at]
                                     : to_float(static_cast<const bf16*>(pool_.data)[at]);
  }
  const AnyView& pool_;
  int64_t h_, K_, V_;
  Vector s_;
};

void to_fp32(Vector& x) {
  for (double& e : x) e = static_cast<float>(e);
}

// Token t: its output, and what a record says of it when `record` is given. Decode tokens are exactly that.
void token(const KdaArgs& a, Head& head, int64_t h, int64_t t, bool decode, float* record = nullptr) {
  const int64_t V = a.v.dim(2);
  const Vector q = key(a, a.q, t, h, static_cast<double>(a.scale));
  Vector d = decay(a, t, h), k = key(a, a.k, t, h, 1), u(static_cast<size_t>(V));
  if (decode) to_fp32(d), to_fp32(k);
  const double b = element(a.beta, t, h), beta = a.beta_kind == KdaBeta::raw ? sigmoid(b) : b;
  head.decay(d.data());
  for (int64_t v = 0; v < V; ++v) u[static_cast<size_t>(v)] = beta * (element(a.v, t, h, v) - head.read(v, k));
  if (decode) to_fp32(u);
  head.change(k.data(), u.data());
  for (int64_t v = 0; v < V; ++v) put(a.out, t * a.out.stride[0] + h * a.out.stride[1] + v, head.read(v, q));
  for (const Vector* part : {&d, &k, &u})
    for (size_t i = 0; record != nullptr && i < part->size(); ++i) *record++ = static_cast<float>((*part)[i]);
}

void prefill(const KdaArgs& a, Head& head, int64_t n, int64_t h) {
  const Sequences& s = a.seq;
  const int64_t begin = s.cu.data[n], len = s.cu.data[n + 1] - begin;
  for (int64_t i = 0; i < len; ++i) {
    token(a, head, h, begin + i, false);
    if ((i + 1) % kKdaChunk == 0) head.round_to_pool();
    for (int64_t x = 0; !s.snapshot.null() && x < s.snapshot.dim(0); ++x)
      if (*s.snapshot.at(x, 2) != -1 && *s.snapshot.at(x, 0) == n && *s.snapshot.at(x, 1) == i + 1)
        head.store(*s.snapshot.at(x, 2));
  }
  head.store(*s.slot.at(n, 0));
}

void decode(const KdaArgs& a, Head& head, int64_t n, int64_t h) {
  const Sequences& s = a.seq;
  const int64_t begin = s.cu.data[n], len = s.cu.data[n + 1] - begin;
  for (int64_t i = 0; i < len; ++i) {
    const bool recorded = !a.records.null() && i > 0;
    token(a, head, h, begin + i, true, recorded ? a.records.at(*s.slot.at(n, 0), i - 1, h) : nullptr);
    head.round_to_pool();
    if (!recorded) head.store(*s.slot.at(n, i));
  }
}

void sequence(const KdaArgs& a, int64_t n, int64_t h) {
  Head head(a.state, h);
  const int32_t accepted = a.seq.accepted.data[n];
  if (a.seq.fresh.data[n] == 0) {
    head.load(*a.seq.slot.at(n, a.records.null() ? accepted - 1 : 0));
    if (!a.records.null()) head.replay(a.records, *a.seq.slot.at(n, 0), accepted - 1);
  }
  if (n < a.seq.n_prefill)
    prefill(a, head, n, h);
  else
    decode(a, head, n, h);
}

void zero_rows(const KdaArgs& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t h = 0; h < a.out.dim(1); ++h)
      for (int64_t v = 0; v < a.out.dim(2); ++v) put(a.out, t * a.out.stride[0] + h * a.out.stride[1] + v, 0);
}

}  // namespace

void kda_reference(const Exec&, const KdaArgs& a, const KdaDesc& d, void*) {
  for (int64_t n = 0; n < a.seq.n_prefill + a.seq.n_decode; ++n) {
    if (a.seq.cu.data[n + 1] == a.seq.cu.data[n]) continue;
    if (*a.seq.slot.at(n, 0) == -1)
      zero_rows(a, a.seq.cu.data[n], a.seq.cu.data[n + 1]);
    else
      for (int64_t h = 0; h < d.H; ++h) sequence(a, n, h);
  }
  zero_rows(a, a.seq.cu.data[a.seq.count()], d.T);
}

void kda_replay_reference(const Exec&, const KdaReplayArgs& a, const KdaDesc& d, void*) {
  for (int64_t n = 0; n < d.N; ++n)
    for (int64_t h = 0; a.slot.data[n] != -1 && h < d.H; ++h) {
      Head head(a.state, h);
      head.load(a.slot.data[n]);
      head.replay(a.records, a.slot.data[n], a.accepted.data[n] - 1);
      head.store(a.slot.data[n]);
    }
}

// The references of its three parts, one behind the other.
void kda_decode_reference(const Exec& ex, const KdaDecodeArgs& a, const KdaDecodeDesc& d, void*) {
  Options options = *ex.options;
  for (const char* part : {"short_conv", "kda", "gated_norm"}) options.force[part] = "reference";
  Exec plain = ex;
  plain.options = &options, plain.observer = nullptr;
  const DType dtype = a.qkv.dtype;
  const int64_t keys = d.H * d.K, values = d.H * d.V, C = 2 * keys + values;
  std::vector<std::byte> mixed_bytes(static_cast<size_t>(d.T * C * dtype_bytes(dtype)));
  std::vector<std::byte> core_bytes(static_cast<size_t>(d.T * values * dtype_bytes(dtype)));
  const AnyView mixed(mixed_bytes.data(), dtype, {d.T, C}), core(core_bytes.data(), dtype, {d.T, d.H, d.V});
  short_conv(plain, {.x = a.qkv, .weight = a.conv_weight, .seq = a.seq, .state = a.window, .out = mixed});
  const KdaArgs step{.q = mixed.columns(0, keys).split_last(d.H, d.K),
                     .k = mixed.columns(keys, keys).split_last(d.H, d.K),
                     .v = mixed.columns(2 * keys, values).split_last(d.H, d.V),
                     .gate = a.decay,
                     .beta = a.beta,
                     .a_log = a.a_log,
                     .dt_bias = a.dt_bias,
                     .gate_kind = a.gate_kind,
                     .lower_bound = a.lower_bound,
                     .beta_kind = a.beta_kind,
                     .norm_kind = a.norm_kind,
                     .scale = a.scale,
                     .seq = a.seq,
                     .state = a.state,
                     .out = core};
  kda(plain, step);
  gated_norm(plain, {.x = core, .gate = a.gate, .weight = a.norm_weight, .eps = a.norm_eps, .out = a.out});
  // Zeros stay zeros there even beside a gate of NaN.
  KdaArgs zeros = step;
  zeros.out = a.out;
  for (int64_t n = 0; n < a.seq.count(); ++n)
    if (*a.seq.slot.at(n, 0) == -1) zero_rows(zeros, a.seq.cu.data[n], a.seq.cu.data[n + 1]);
  zero_rows(zeros, a.seq.cu.data[a.seq.count()], d.T);
}

}  // namespace kdelta
