// The state scan against the recurrence: its inputs are made here from the chunk form's definitions in fp64.
#include "kdelta/ops/kda/state_scan.h"
#include "kdelta/ops/kda/test_problem.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::relative_rmse;

// What the recurrence says, and the scan's inputs for the same numbers.
struct Made {
  int64_t T, H, K, V;
  std::vector<int32_t> cu;
  Guarded<float> k, w, u, gk, g, initial;
  std::vector<double> h, v_new, final_state;  // h per chunk [V, K], changes per token, states [N, H, V, K]
};

enum class Gate { none, scalar, channel };

// One head of one chunk: solves (I + L) [w u] = b [k 2^G, v] row by row.
void make_chunk(Made& m, Gate kind, const std::vector<std::vector<double>>& log_decay, int64_t h, int64_t begin,
                int64_t end, const Guarded<float>& raw_k, const Guarded<float>& v, const Guarded<float>& beta) {
  const auto at = [&](int64_t t, int64_t d) { return (t * m.H + h) * m.K + d; };
  std::vector<std::vector<double>> w, u, G;
  for (int64_t t = begin; t < end; ++t) {
    const double b = beta[t * m.H + h];
    std::vector<double> sum(static_cast<size_t>(m.K)), wt(static_cast<size_t>(m.K)), ut(static_cast<size_t>(m.V));
    for (size_t d = 0; d < sum.size(); ++d)
      sum[d] = (G.empty() ? 0 : G.back()[d]) + log_decay[static_cast<size_t>(t)][d];
    G.push_back(sum);
    for (size_t d = 0; d < sum.size(); ++d) wt[d] = b * raw_k[at(t, static_cast<int64_t>(d))] * std::exp(sum[d]);
    for (size_t e = 0; e < ut.size(); ++e) ut[e] = b * v[(t * m.H + h) * m.V + static_cast<int64_t>(e)];
    for (size_t j = 0; j < w.size(); ++j) {
      double low = 0;
      for (size_t d = 0; d < sum.size(); ++d)
        low += b * raw_k[at(t, static_cast<int64_t>(d))] *
               raw_k[at(begin + static_cast<int64_t>(j), static_cast<int64_t>(d))] * std::exp(sum[d] - G[j][d]);
      for (size_t d = 0; d < wt.size(); ++d) wt[d] -= low * w[j][d];
      for (size_t e = 0; e < ut.size(); ++e) ut[e] -= low * u[j][e];
    }
    w.push_back(wt);
    u.push_back(ut);
  }
  for (int64_t t = begin; t < end; ++t) {
    const auto i = static_cast<size_t>(t - begin);
    for (int64_t d = 0; d < m.K; ++d) {
      const auto e = static_cast<size_t>(d);
      m.w[at(t, d)] = static_cast<float>(w[i][e]);
      m.gk[at(t, d)] = static_cast<float>(G[i][e] / std::log(2.0));
      const double weight =
          kind == Gate::channel ? std::exp(G.back()[e] - G[i][e]) : 1;  // a scalar gate is weighted by the scan
      m.k[at(t, d)] = static_cast<float>(raw_k[at(t, d)] * weight);
    }
    m.g[t * m.H + h] = static_cast<float>(G[i][0]);
    for (int64_t e = 0; e < m.V; ++e) m.u[(t * m.H + h) * m.V + e] = static_cast<float>(u[i][static_cast<size_t>(e)]);
  }
}

Made make(Gate kind, std::vector<int32_t> cu, int64_t H, int64_t K, int64_t V) {
  const int64_t T = cu.back() + 3, N = static_cast<int64_t>(cu.size()) - 1;
  Made m{T,
         H,
         K,
         V,
         cu,
         Guarded<float>({T, H, K}),
         Guarded<float>({T, H, K}),
         Guarded<float>({T, H, V}),
         Guarded<float>({T, H, K}),
         Guarded<float>({T, H}),
         Guarded<float>({N, H, V, K}),
         {},
         {},
         {}};
  test::Rng rng(4);
  Guarded<float> k({T, H, K}), v({T, H, V}), beta({T, H});
  fill_normal(k, rng, 1.0f / std::sqrt(static_cast<float>(K)));
  fill_normal(v, rng);
  fill_uniform(beta, rng, 0.1f, 0.99f);
  fill_normal(m.initial, rng);
  m.final_state.resize(static_cast<size_t>(N * H * V * K));
  m.v_new.resize(static_cast<size_t>(T * H * V));
  m.h.resize(static_cast<size_t>(state_scan_chunks(View<const int32_t>(cu.data(), {N + 1})) * H * V * K));
  std::uniform_real_distribution<double> draw(-0.3, 0);
  for (int64_t h = 0; h < H; ++h) {
    std::vector<std::vector<double>> log_decay(static_cast<size_t>(T), std::vector<double>(static_cast<size_t>(K)));
    for (auto& row : log_decay) {
      const double one = draw(rng);
      for (double& x : row) x = kind == Gate::none ? 0 : kind == Gate::scalar ? one : draw(rng);
    }
    int64_t chunk = 0;
    for (int64_t n = 0; n < N; ++n) {
      std::vector<double> s(&m.initial[(n * H + h) * V * K], &m.initial[(n * H + h) * V * K] + V * K);
      for (int64_t t = cu[static_cast<size_t>(n)]; t < cu[static_cast<size_t>(n) + 1]; ++t) {
        const int64_t i = t - cu[static_cast<size_t>(n)];
        if (i % kKdaChunk == 0) {
          std::copy(s.begin(), s.end(), m.h.begin() + (chunk++ * H + h) * V * K);
          make_chunk(m, kind, log_decay, h, t, std::min<int64_t>(t + kKdaChunk, cu[static_cast<size_t>(n) + 1]), k, v,
                     beta);
        }
        for (int64_t e = 0; e < V; ++e) {
          double read = 0;
          for (int64_t d = 0; d < K; ++d)
            read += (s[static_cast<size_t>(e * K + d)] *=
                     std::exp(log_decay[static_cast<size_t>(t)][static_cast<size_t>(d)])) *
                    k[(t * H + h) * K + d];
          const double change = beta[t * H + h] * (v[(t * H + h) * V + e] - read);
          m.v_new[static_cast<size_t>((t * H + h) * V + e)] = change;
          for (int64_t d = 0; d < K; ++d) s[static_cast<size_t>(e * K + d)] += change * k[(t * H + h) * K + d];
        }
      }
      std::copy(s.begin(), s.end(), m.final_state.begin() + (n * H + h) * V * K);
    }
  }
  return m;
}

TEST(KdaStateScan, GivesTheStatesAndChangesOfTheRecurrenceForEveryGate) {
  for (Gate kind : {Gate::none, Gate::scalar, Gate::channel})
    for (const std::vector<int32_t>& cu : {std::vector<int32_t>{0, 130}, {0, 0, 64, 65, 65}, {0, 1, 17, 145}}) {
      Made m = make(kind, cu, 2, 12, 20);
      const int64_t N = static_cast<int64_t>(cu.size()) - 1, NC = static_cast<int64_t>(m.h.size()) / (2 * 12 * 20);
      Guarded<float> h({NC, 2, 20, 12}), v_new({m.T, 2, 20}), final_state({N, 2, 20, 12});
      StateScanArgs a{.k = m.k,
                      .w = m.w,
                      .u = m.u,
                      .initial_state = m.initial,
                      .cu = View<const int32_t>(cu.data(), {N + 1}),
                      .h = h,
                      .v_new = v_new,
                      .final_state = final_state};
      if (kind == Gate::channel) a.gk = m.gk;
      if (kind == Gate::scalar) a.g = m.g;
      state_scan(a);
      EXPECT_LE(relative_rmse(doubles(h), m.h), 1e-6);
      EXPECT_LE(relative_rmse(doubles(v_new), m.v_new), 1e-6);  // rows of nobody are zero in both
      EXPECT_LE(relative_rmse(doubles(final_state), m.final_state), 1e-6);
      EXPECT_TRUE(h.guards_intact() && v_new.guards_intact() && final_state.guards_intact());
      if (kind != Gate::scalar) continue;
      for (int64_t i = 0; i < m.g.size(); ++i) m.g[i] /= std::log(2.0f);
      a.g_base = ScanGateBase::two;
      state_scan(a);
      EXPECT_LE(relative_rmse(doubles(final_state), m.final_state), 1e-6);
    }
}

TEST(KdaStateScan, WorksWithoutInitialStateChangesAndFinalState) {
  const std::vector<int32_t> cu = {0, 70};
  Made m = make(Gate::channel, cu, 1, 8, 8);
  for (int64_t i = 0; i < m.initial.size(); ++i) m.initial[i] = 0;
  Guarded<float> with({2, 1, 8, 8}), without({2, 1, 8, 8});
  StateScanArgs a{.k = m.k,
                  .w = m.w,
                  .u = m.u,
                  .gk = m.gk,
                  .initial_state = m.initial,
                  .cu = View<const int32_t>(cu.data(), {2}),
                  .h = with};
  state_scan(a);
  a.initial_state = {};
  a.h = without;
  state_scan(a);
  EXPECT_TRUE(same_bits(with, without));
}

TEST(KdaStateScan, RefusesWrongArgumentsByName) {
  const std::vector<int32_t> cu = {0, 70}, falling = {0, 80};
  Made m = make(Gate::channel, cu, 1, 8, 8);
  Guarded<float> h({2, 1, 8, 8});
  const StateScanArgs good{.k = m.k, .w = m.w, .u = m.u, .gk = m.gk, .cu = View<const int32_t>(cu.data(), {2}), .h = h};
  auto with = [&](auto change) {
    StateScanArgs a = good;
    change(a);
    return test::error_of([&] { state_scan(a); });
  };
  using testing::HasSubstr;
  EXPECT_THAT(with([&](auto& a) { a.g = m.g; }), HasSubstr("g: given together with gk"));
  EXPECT_THAT(with([&](auto& a) { a.cu.data = falling.data(); }), HasSubstr("cu[1] is 80"));
  EXPECT_THAT(with([&](auto& a) { a.h.shape.dim[0] = 1; }),
              HasSubstr("state_scan: h: shape [1, 1, 8, 8], expected [2, 1, 8, 8]"));
  EXPECT_THAT(with([&](auto& a) { a.w.stride[0] = 9; }), HasSubstr("state_scan: w: expected a dense view"));
}

}  // namespace
}  // namespace kdelta
