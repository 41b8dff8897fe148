// The definition of kda: the recurrence token by token in fp64. The state is rounded to the pool's dtype after each
// decode token (a verification continues from what it stored, like that many single steps) and after each 64 tokens of
// a prefill.
#include <cmath>
#include <vector>

#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/kda/variants.h"

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

// One head of one sequence: the state as [V][K] in fp64.
class Head {
 public:
  Head(const KdaArgs& a, int64_t h) : a_(a), h_(h), K_(a.q.dim(2)), V_(a.v.dim(2)), s_(static_cast<size_t>(K_ * V_)) {}

  void load(int64_t slot) {
    for (int64_t i = 0; i < K_ * V_; ++i) {
      const int64_t at = slot * a_.state.stride[0] + h_ * V_ * K_ + i;
      s_[static_cast<size_t>(i)] = a_.state.dtype == DType::f32 ? static_cast<const float*>(a_.state.data)[at]
                                                                : to_float(static_cast<const bf16*>(a_.state.data)[at]);
    }
  }
  void store(int64_t slot) const {
    for (int64_t i = 0; i < K_ * V_; ++i)
      put(a_.state, slot * a_.state.stride[0] + h_ * V_ * K_ + i, s_[static_cast<size_t>(i)]);
  }
  void round_to_pool() {
    for (double& s : s_) {
      const float f = static_cast<float>(s);
      s = a_.state.dtype == DType::f32 ? f : to_float(to_bf16(f));
    }
  }
  void token(int64_t t) {
    const Vector q = key(a_, a_.q, t, h_, static_cast<double>(a_.scale)), k = key(a_, a_.k, t, h_, 1),
                 d = decay(a_, t, h_);
    const double b = element(a_.beta, t, h_), beta = a_.beta_kind == KdaBeta::raw ? sigmoid(b) : b;
    for (int64_t v = 0; v < V_; ++v) {
      double* s = &s_[static_cast<size_t>(v * K_)];
      double read = 0, o = 0;
      for (size_t i = 0; i < k.size(); ++i) read += (s[i] *= d[i]) * k[i];
      const double u = beta * (element(a_.v, t, h_, v) - read);
      for (size_t i = 0; i < k.size(); ++i) o += (s[i] += u * k[i]) * q[i];
      put(a_.out, t * a_.out.stride[0] + h_ * a_.out.stride[1] + v, o);
    }
  }

 private:
  const KdaArgs& a_;
  int64_t h_, K_, V_;
  Vector s_;
};

void sequence(const KdaArgs& a, int64_t n, int64_t h) {
  const Sequences& s = a.seq;
  const int64_t begin = s.cu.data[n], len = s.cu.data[n + 1] - begin;
  const bool prefill = n < s.n_prefill;
  Head head(a, h);
  if (s.fresh.data[n] == 0) head.load(*s.slot.at(n, s.accepted.data[n] - 1));
  for (int64_t i = 0; i < len; ++i) {
    head.token(begin + i);
    if (!prefill || (i + 1) % kKdaChunk == 0) head.round_to_pool();
    if (!prefill) head.store(*s.slot.at(n, i));
    for (int64_t x = 0; prefill && !s.snapshot.null() && x < s.snapshot.dim(0); ++x)
      if (*s.snapshot.at(x, 2) != -1 && *s.snapshot.at(x, 0) == n && *s.snapshot.at(x, 1) == i + 1)
        head.store(*s.snapshot.at(x, 2));
  }
  if (prefill) head.store(*s.slot.at(n, 0));
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

}  // namespace kdelta
