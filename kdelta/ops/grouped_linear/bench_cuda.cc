#include <numeric>
#include <random>

#include "kdelta/ops/grouped_linear/variants.h"
#include "tests/gpu/bench.h"

namespace kdelta {
namespace {

struct Shape3 {
  const char* what;
  DType w;
  int64_t E, chosen, N, K;
  bool rows;           // pairs name their token's row; else pair p has row p, as the down projection has
  bool gated = false;  // gate and up, with their activation
};

// T tokens that each choose `chosen` of E experts evenly at random; every set has another choice of as many experts.
struct Choice {
  std::vector<int32_t> begin, row;
  int64_t active = 0;
};
Choice choose_experts(const Shape3& s, int64_t T, int set) {
  std::mt19937_64 rng(7);
  std::vector<std::vector<int32_t>> tokens(static_cast<size_t>(s.E));
  std::vector<int32_t> order(static_cast<size_t>(s.E));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t t = 0; t < T; ++t)
    for (int64_t i = 0; i < s.chosen; ++i) {
      std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(i) + rng() % static_cast<size_t>(s.E - i)]);
      tokens[static_cast<size_t>((order[static_cast<size_t>(i)] + 37 * set) % s.E)].push_back(static_cast<int32_t>(t));
    }
  Choice c;
  for (const auto& list : tokens) {
    c.begin.push_back(static_cast<int32_t>(c.row.size()));
    c.active += list.empty() ? 0 : 1;
    c.row.insert(c.row.end(), list.begin(), list.end());
  }
  c.begin.push_back(static_cast<int32_t>(c.row.size()));
  return c;
}

struct Data {
  std::shared_ptr<Buffer> w, scale, x, out;
  std::vector<std::shared_ptr<Buffer>> begin, row;
  std::vector<Matrix> experts, ups;
};

std::shared_ptr<Data> make_data(const Shape3& s, int64_t T, int sets) {
  auto d = std::make_shared<Data>();
  const Matrix one = dense_matrix(nullptr, s.w, s.N, s.K);
  const int64_t P = T * s.chosen;
  const int64_t matrices = s.gated ? 2 : 1;
  d->w = gpu_bench::filled(matrices * s.E * s.N * one.row_bytes);
  d->scale = gpu_bench::uploaded(std::vector<uint8_t>(
      static_cast<size_t>(std::max<int64_t>(16, matrices * s.E * s.N * one.scale_row_bytes)), 120));
  d->x = gpu_bench::filled((s.rows ? T : P) * s.K * 2);
  d->out = gpu_bench::filled(P * s.N * 2);
  for (int64_t e = 0; e < matrices * s.E; ++e) {
    Matrix m = one;
    m.data = static_cast<const uint8_t*>(d->w->data()) + e * s.N * one.row_bytes;
    if (m.is_mx()) m.scale = static_cast<const uint8_t*>(d->scale->data()) + e * s.N * one.scale_row_bytes;
    (e < s.E ? d->experts : d->ups).push_back(m);
  }
  for (int set = 0; set < sets; ++set) {
    const Choice c = choose_experts(s, T, set);
    d->begin.push_back(gpu_bench::uploaded(c.begin));
    d->row.push_back(gpu_bench::uploaded(c.row));
  }
  return d;
}

void add_grouped(const std::string& variant, const Shape3& s, int64_t T) {
  const int64_t P = T * s.chosen;
  const Matrix one = dense_matrix(nullptr, s.w, s.N, s.K);
  const auto pairs = static_cast<double>(P), active = static_cast<double>(choose_experts(s, T, 0).active);
  const Cost cost{.bytes = active * static_cast<double>(one.bytes()) * (s.gated ? 2 : 1) +
                           static_cast<double>(((s.rows ? T : P) * s.K + P * s.N) * 2),
                  .flops = 2 * pairs * static_cast<double>(s.N * s.K) * (s.gated ? 2 : 1)};
  gpu_bench::add(
      {.op = "grouped_linear",
       .variant = variant,
       .shape = str(s.what, " T=", T, " ", s.chosen, " of ", s.E, " N=", s.N, " K=", s.K, " w ", dtype_name(s.w)),
       .cost = cost,
       .roof = gpu_bench::RoofKind::read,
       .make = [=](int sets) {
         auto d = make_data(s, T, sets);
         return [=](const Exec& ex, int set) {
           const auto i = static_cast<size_t>(set);
           grouped_linear(ex, {.x = d->x->view(DType::bf16, {s.rows ? T : P, s.K}),
                               .row = s.rows ? d->row[i]->view<const int32_t>({P}) : View<const int32_t>(),
                               .expert_begin = d->begin[i]->view<const int32_t>({s.E + 1}),
                               .w = d->experts,
                               .out = d->out->view(DType::bf16, {P, s.N}),
                               .up_w = d->ups});
         };
       }});
}

// Expert projections of Kimi-Linear-48B (bf16) and of Kimi K3 (MXFP4, whole and as one of eight ranks
// has them by width; MXFP8 for comparison, whole experts of one of eight ranks).
constexpr Shape3 kShapes[] = {
    {"linear gate+up", DType::bf16, 256, 8, 1024, 2304, true, true},
    {"linear up", DType::bf16, 256, 8, 1024, 2304, true},
    {"linear down", DType::bf16, 256, 8, 2304, 1024, false},
    {"k3 up", DType::f4_e2m1, 896, 16, 3072, 3584, true},
    {"k3 down", DType::f4_e2m1, 896, 16, 3584, 3072, false},
    {"k3 gate+up", DType::f4_e2m1, 896, 16, 3072, 3584, true, true},
    {"k3 rank gate+up", DType::f4_e2m1, 896, 16, 384, 3584, true, true},
    {"k3 rank down", DType::f4_e2m1, 896, 16, 3584, 384, false},
    {"mxfp8 up", DType::f8_e4m3, 112, 2, 3072, 3584, true},
};

KDELTA_GPU_BENCH(grouped_linear) {
  for (const std::string& variant : gpu_bench::cuda_variants(grouped_linear_variants()))
    for (const Shape3& s : kShapes)
      for (int64_t T : {1, 8, 64, 512, 2048, 8192}) {
        // The parity path, a look at its cost; the row for many pairs takes no few; the exact row serves them too.
        if (variant == "cuda" && (T != 8 || s.w != DType::bf16)) continue;
        const bool gates = variant == "cuda_stream" || variant == "cuda_pairs" || variant == "cuda_fp4";
        if (s.gated && (!gates || T > 64)) continue;
        if (variant == "cuda_pairs" && (T > 2 || s.w == DType::f4_e2m1)) continue;
        if (variant == "cuda_fp4" && s.w != DType::f4_e2m1) continue;
        if (variant == "cuda_gemm" && T * s.chosen <= (s.w == DType::bf16 ? 8 : 16) * s.E) continue;
        add_grouped(variant, s, T);
      }
}

}  // namespace
}  // namespace kdelta
