#include "kdelta/ops/kda/state_scan.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kdelta/core/error.h"
#include "kdelta/ops/kda/kda.h"

namespace kdelta {
namespace {

template <class T>
void expect_dense(const View<T>& v, const Shape& want, const char* argument) {
  expect_view(v, want, argument);
  if (v.stride != dense_strides(v.shape)) fail(ErrorCode::invalid_argument, argument, ": expected a dense view");
}

void check_boundaries(const View<const int32_t>& cu, int64_t T) {
  if (cu.shape.rank != 1 || cu.dim(0) < 1 || cu.null())
    fail(ErrorCode::invalid_argument, "state_scan: cu: shape ", to_string(cu.shape), ", expected [N + 1]");
  if (cu.data[0] != 0) fail(ErrorCode::invalid_argument, "state_scan: cu[0] is ", cu.data[0], ", expected 0");
  for (int64_t n = 1; n < cu.dim(0); ++n)
    if (cu.data[n] < cu.data[n - 1] || cu.data[n] > T)
      fail(ErrorCode::invalid_argument, "state_scan: cu[", n, "] is ", cu.data[n], ", expected ", cu.data[n - 1], "..",
           T);
}

void check(const StateScanArgs& a) {
  if (a.k.shape.rank != 3 || a.u.shape.rank != 3)
    fail(ErrorCode::invalid_argument, "state_scan: k and u: shapes ", to_string(a.k.shape), " and ",
         to_string(a.u.shape), ", expected [T, H, K] and [T, H, V]");
  const int64_t T = a.k.dim(0), H = a.k.dim(1), K = a.k.dim(2), V = a.u.dim(2);
  check_boundaries(a.cu, T);
  const int64_t N = a.cu.dim(0) - 1;
  expect_dense(a.k, {T, H, K}, "state_scan: k");
  expect_dense(a.w, {T, H, K}, "state_scan: w");
  expect_dense(a.u, {T, H, V}, "state_scan: u");
  if (!a.gk.null()) expect_dense(a.gk, {T, H, K}, "state_scan: gk");
  if (!a.g.null()) expect_dense(a.g, {T, H}, "state_scan: g");
  if (!a.g.null() && !a.gk.null()) fail(ErrorCode::invalid_argument, "state_scan: g: given together with gk");
  if (!a.initial_state.null()) expect_dense(a.initial_state, {N, H, V, K}, "state_scan: initial_state");
  expect_dense(a.h, {state_scan_chunks(a.cu), H, V, K}, "state_scan: h");
  if (!a.v_new.null()) expect_dense(a.v_new, {T, H, V}, "state_scan: v_new");
  if (!a.final_state.null()) expect_dense(a.final_state, {N, H, V, K}, "state_scan: final_state");
}

// One head of one sequence; s is its state [V][K].
class Head {
 public:
  Head(const StateScanArgs& a, int64_t h)
      : a_(a), h_(h), K_(a.k.dim(2)), V_(a.u.dim(2)), s_(static_cast<size_t>(K_ * V_)) {}

  void load(const float* from) { std::copy(from, from + K_ * V_, s_.begin()); }
  void store(float* to) const {
    for (int64_t i = 0; i < K_ * V_; ++i) to[i] = static_cast<float>(s_[static_cast<size_t>(i)]);
  }

  void chunk(int64_t begin, int64_t end) {
    std::vector<double> changes(static_cast<size_t>((end - begin) * V_));
    for (int64_t t = begin; t < end; ++t)
      for (int64_t v = 0; v < V_; ++v) {
        double x = a_.u.at(t, h_)[v];
        for (int64_t d = 0; d < K_; ++d) x -= a_.w.at(t, h_)[d] * s_[static_cast<size_t>(v * K_ + d)];
        changes[static_cast<size_t>((t - begin) * V_ + v)] = x;
        if (!a_.v_new.null()) a_.v_new.at(t, h_)[v] = static_cast<float>(x);
      }
    for (int64_t d = 0; d < K_; ++d) {
      const double kept =
          a_.gk.null() ? power(scalar(end - 1)) : std::exp2(static_cast<double>(a_.gk.at(end - 1, h_)[d]));
      for (int64_t v = 0; v < V_; ++v) {
        double& s = s_[static_cast<size_t>(v * K_ + d)];
        s *= kept;
        for (int64_t t = begin; t < end; ++t)
          s += power(scalar(end - 1) - scalar(t)) * a_.k.at(t, h_)[d] *
               changes[static_cast<size_t>((t - begin) * V_ + v)];
      }
    }
  }

 private:
  double scalar(int64_t t) const { return a_.g.null() ? 0 : a_.g.at(t)[h_]; }
  double power(double x) const { return a_.g_base == ScanGateBase::e ? std::exp(x) : std::exp2(x); }

  const StateScanArgs& a_;
  int64_t h_, K_, V_;
  std::vector<double> s_;
};

}  // namespace

int64_t state_scan_chunks(const View<const int32_t>& cu) {
  int64_t chunks = 0;
  for (int64_t n = 0; n + 1 < cu.dim(0); ++n) chunks += (cu.data[n + 1] - cu.data[n] + kKdaChunk - 1) / kKdaChunk;
  return chunks;
}

void state_scan(const StateScanArgs& a) {
  check(a);
  const int64_t H = a.k.dim(1), size = a.k.dim(2) * a.u.dim(2), N = a.cu.dim(0) - 1;
  for (int64_t h = 0; h < H; ++h) {
    int64_t chunk = 0;
    for (int64_t n = 0; n < N; ++n) {
      Head head(a, h);
      if (!a.initial_state.null()) head.load(a.initial_state.data + (n * H + h) * size);
      for (int64_t t = a.cu.data[n]; t < a.cu.data[n + 1]; t += kKdaChunk) {
        head.store(a.h.data + (chunk++ * H + h) * size);
        head.chunk(t, std::min<int64_t>(t + kKdaChunk, a.cu.data[n + 1]));
      }
      if (!a.final_state.null()) head.store(a.final_state.data + (n * H + h) * size);
    }
  }
  if (a.v_new.null()) return;
  const int64_t end = a.cu.data[N];
  std::fill(a.v_new.data + end * H * a.u.dim(2), a.v_new.data + a.v_new.shape.numel(), 0.0f);
}

}  // namespace kdelta
