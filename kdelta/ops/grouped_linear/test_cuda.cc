#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>

#include "kdelta/core/fault.h"
#include "kdelta/ops/activation/activation.h"
#include "kdelta/ops/grouped_linear/variants.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {
namespace {

constexpr DType kWeightTypes[] = {DType::f32, DType::bf16, DType::f8_e4m3, DType::f8_e5m2, DType::f4_e2m1};

// The matrices of all experts in one array of bytes and one of scales.
class ExpertWeights {
 public:
  ExpertWeights(DType dtype, int64_t E, int64_t N, int64_t K, int64_t gap)
      : E_(E),
        one_(dense_matrix(nullptr, dtype, N, K)),
        codes_({E * N, one_.row_bytes + gap}),
        scales_({E * N, one_.scale_row_bytes + (one_.is_mx() ? gap : 1)}) {
    one_.row_bytes = codes_.shape()[1], one_.scale_row_bytes = scales_.shape()[1];
  }
  void add_to(EffectCase& c, int64_t shift) {
    c.array("w", codes_, {}, shift);
    c.array("w scale", scales_, {}, shift);
  }
  // Values of the order of one.
  void fill(Rng& rng) {
    std::normal_distribution<float> normal;
    for (int64_t n = 0; n < E_ * one_.rows; ++n) {
      uint8_t* row = &codes_[n * one_.row_bytes];
      for (int64_t k = 0; k < one_.cols; ++k) {
        const float v = normal(rng);
        const bf16 half = to_bf16(v);
        if (one_.dtype == DType::f32) std::memcpy(row + 4 * k, &v, 4);
        if (one_.dtype == DType::bf16) std::memcpy(row + 2 * k, &half, 2);
        if (one_.dtype == DType::f4_e2m1 && k % 2 == 0) row[k / 2] = static_cast<uint8_t>(rng());
        if (one_.dtype == DType::f8_e4m3) row[k] = static_cast<uint8_t>(rng() & 0xd7);  // magnitudes up to 15
        if (one_.dtype == DType::f8_e5m2) row[k] = static_cast<uint8_t>(rng() & 0xbf);
      }
      for (int64_t b = 0; one_.is_mx() && b < one_.cols / kMxBlock; ++b)
        scales_[n * one_.scale_row_bytes + b] = static_cast<uint8_t>(122 + rng() % 4);
    }
  }
  // Expert e has block (e * stride) % E: with a stride other than 1 the distances of neighbours differ.
  std::vector<Matrix> at(const EffectCase::At& at, const MxInput& input, int64_t stride) {
    std::vector<Matrix> all;
    for (int64_t e = 0; e < E_; ++e) {
      Matrix m = one_;
      const int64_t first = e * stride % E_ * m.rows;
      m.input = input;
      m.data = at(codes_).data + first * m.row_bytes;
      if (m.is_mx()) m.scale = at(scales_).data + first * m.scale_row_bytes;
      all.push_back(m);
    }
    return all;
  }
  uint8_t& code(int64_t e, int64_t n, int64_t byte) { return codes_[(e * one_.rows + n) * one_.row_bytes + byte]; }
  uint8_t& scale(int64_t e, int64_t n, int64_t b) { return scales_[(e * one_.rows + n) * one_.scale_row_bytes + b]; }

 private:
  int64_t E_;
  Matrix one_;
  Guarded<uint8_t> codes_, scales_;
};

// What fp32 sums in any order may differ by, where |x w| is 1 or so.
template <class Out>
Bound sum_bound(int64_t K) {
  const double k = static_cast<double>(K), absolute = 2 * k * 0x1p-24 * (std::sqrt(k) + 4);
  if (sizeof(Out) == 4) return {.relative = 1e-6, .absolute = absolute};
  // Near zero a bf16 number is finer than that error.
  return {.relative = 0x1p-7, .absolute = absolute, .share = 0.02 + 1e-5 * k};
}

struct Form {
  DType w = DType::bf16;
  int64_t E = 1, P = 1, N = 1, K = 1;
  // A routing for each replay in turn: pairs of each expert. Fewer than P in all: the rest get zeros.
  std::vector<std::vector<int32_t>> counts;
  bool rows = true;  // pairs name rows of x; else pair p has row p
  int64_t gap = 0, column = 0, shift = 0, w_gap = 0;
  int64_t stride = 1;  // of the experts in memory
  MxInput input = {};
  std::optional<ActivationKind> gate = {};  // with up projections
};

template <class In, class Out>
struct Problem {
  explicit Problem(Form form) : Problem(form, sum_bound<Out>(form.K)) {}
  Problem(Form form, Bound bound)
      : f(std::move(form)),
        R(f.rows ? f.P / 2 + (f.P / 2 % 7 == 4 ? 4 : 3) : f.P),  // 7 does not divide it
        x({R, f.K + f.gap}),
        out({f.P, f.N + f.gap}),
        row({f.P}),
        begin({f.E + 1}),
        w(f.w, f.E, f.N, f.K, f.w_gap),
        up_w(f.w, f.E, f.gate ? f.N : 0, f.K, f.w_gap) {
    c.array("x", x, {}, f.shift);
    w.add_to(c, f.shift);
    if (f.gate) up_w.add_to(c, f.shift);
    c.array("row", row);
    c.array("expert_begin", begin);
    c.array("out", out, bound, f.shift);
    c.fill = [this](Rng& rng) {
      fill_normal(x, rng);
      w.fill(rng);
      if (f.gate) {  // gates of the order of one
        up_w.fill(rng);
        const float size = 2 / std::sqrt(static_cast<float>(f.K));
        for (int64_t i = 0; i < x.size(); ++i) x[i] = from_float<In>(to_float(x[i]) * size);
      }
      const std::vector<int32_t>& counts = f.counts[turn++ % f.counts.size()];
      begin[0] = 0;
      for (int64_t e = 0; e < f.E; ++e) begin[e + 1] = begin[e] + counts[static_cast<size_t>(e)];
      for (int64_t p = 0; p < f.P; ++p) row[p] = p < begin[f.E] ? static_cast<int32_t>((p * 7 + 2) % R) : -1;
    };
    c.call = [this](const Exec& ex, const EffectCase::At& at) {
      const std::vector<Matrix> experts = w.at(at, f.input, f.stride);
      const std::vector<Matrix> ups = f.gate ? up_w.at(at, f.input, f.stride) : std::vector<Matrix>{};
      GroupedLinearArgs a{.x = AnyConstView(at(x)).columns(f.column, f.K),
                          .row = f.rows ? View<const int32_t>(at(row)) : View<const int32_t>(),
                          .expert_begin = at(begin),
                          .w = experts,
                          .out = AnyView(at(out)).columns(f.column, f.N)};
      if (f.gate) a.up_w = ups, a.activation = *f.gate, a.beta = 1.5f, a.linear_beta = 2;
      grouped_linear(ex, a);
    };
  }
  void run() {
    SCOPED_TRACE(str(dtype_name(f.w), " E ", f.E, " P ", f.P, " N ", f.N, " K ", f.K, " gap ", f.gap, " column ",
                     f.column, " shift ", f.shift, " w_gap ", f.w_gap, " stride ", f.stride));
    c.run("grouped_linear", grouped_linear_variants());
  }

  Form f;
  int64_t R;
  Guarded<In> x;
  Guarded<Out> out;
  Guarded<int32_t> row, begin;
  ExpertWeights w, up_w;
  EffectCase c;
  size_t turn = 0;
};

template <class In, class Out>
void check(const Form& f) {
  Problem<In, Out>(f).run();
}

// E experts; pairs are dealt to them in lumps that differ from replay to replay.
std::vector<std::vector<int32_t>> routings(int64_t E, int64_t P) {
  std::vector<std::vector<int32_t>> all;
  for (int turn = 0; turn < 4; ++turn) {
    std::vector<int32_t> counts(static_cast<size_t>(E));
    for (int64_t p = 0, e = turn; p < P; ++e) {
      const int64_t lump = std::min<int64_t>(P - p, e % 3 == 0 ? 0 : (e * 5 + turn) % 9);
      counts[static_cast<size_t>(e * 7 % E)] += static_cast<int32_t>(lump);
      p += lump;
    }
    all.push_back(counts);
  }
  return all;
}

std::vector<int32_t> all_to(int64_t E, int64_t e, int64_t P) {
  std::vector<int32_t> counts(static_cast<size_t>(E));
  counts[static_cast<size_t>(e)] = static_cast<int32_t>(P);
  return counts;
}

TEST(GroupedLinearCuda, EqualsTheReferenceForEveryTypeWithAnotherRoutingInEveryReplay) {
  for (DType w : kWeightTypes)
    for (int64_t K : {32, 96, 544, 1024}) {
      check<bf16, bf16>({.w = w, .E = 11, .P = 40, .N = 72, .K = K, .counts = routings(11, 37)});
      check<bf16, float>({.w = w, .E = 5, .P = 150, .N = 35, .K = K, .counts = routings(5, 150)});
      check<float, float>({.w = w, .E = 5, .P = 70, .N = 35, .K = K, .counts = routings(5, 66)});
      check<float, bf16>({.w = w, .E = 3, .P = 4, .N = 130, .K = K, .counts = routings(3, 3)});
    }
  for (DType w : {DType::f32, DType::bf16})
    for (int64_t K : {1, 7, 33, 65, 100}) {
      check<bf16, bf16>({.w = w, .E = 4, .P = 20, .N = 19, .K = K, .counts = routings(4, 20)});
      check<float, float>({.w = w, .E = 4, .P = 20, .N = 19, .K = K, .counts = routings(4, 20)});
    }
}

TEST(GroupedLinearCuda, OneExpertMayHaveEveryPairOrOnePairOrNone) {
  for (DType w : {DType::bf16, DType::f8_e4m3, DType::f4_e2m1}) {
    for (int64_t P : {1, 7, 8, 9, 16, 17, 33, 64, 65, 128, 129, 300}) {
      const int64_t E = 6;
      check<bf16, bf16>({.w = w,
                         .E = E,
                         .P = P,
                         .N = 136,
                         .K = 160,
                         .counts = {all_to(E, 0, P), all_to(E, 5, P), all_to(E, 3, P), all_to(E, 2, P - 1)}});
      check<bf16, bf16>({.w = w, .E = 1, .P = P, .N = 16, .K = 64, .counts = {{static_cast<int32_t>(P)}, {0}, {1}}});
    }
    check<bf16, bf16>({.w = w, .E = 900, .P = 48, .N = 24, .K = 64, .counts = routings(900, 44)});
    check<bf16, bf16>({.w = w, .E = 900, .P = 2000, .N = 8, .K = 32, .counts = routings(900, 2000), .stride = 7});
  }
}

TEST(GroupedLinearCuda, WithoutRowsPairPUsesRowP) {
  for (DType w : {DType::f32, DType::bf16, DType::f4_e2m1})
    for (int64_t P : {5, 200})
      check<bf16, bf16>({.w = w, .E = 4, .P = P, .N = 40, .K = 128, .counts = routings(4, P), .rows = false});
}

TEST(GroupedLinearCuda, StridesAndAlignmentAreFreeGapsStayAndExpertsLieAnywhere) {
  for (DType w : kWeightTypes)
    for (int64_t P : {6, 100}) {
      const Form f{.w = w, .E = 7, .P = P, .N = 48, .K = 128, .counts = routings(7, P)};
      for (const auto& [gap, column] : {std::pair<int64_t, int64_t>{13, 5}, {64, 8}}) {
        Form g = f;
        g.gap = gap, g.column = column, g.stride = 3;
        check<bf16, bf16>(g);
        check<float, float>(g);
      }
      for (int64_t shift : {4, 8, 16}) {
        Form g = f;
        g.shift = shift;
        check<bf16, float>(g);
      }
      for (int64_t gap : {1, 4, 16}) {
        Form g = f;
        g.w_gap = gap, g.stride = gap == 16 ? 5 : 1;
        check<bf16, bf16>(g);
      }
    }
}

TEST(GroupedLinearCuda, InputsAreQuantisedByTheExpertsRule) {
  for (DType format : {DType::f8_e4m3, DType::f8_e5m2})
    for (MxScaleRule rule : {MxScaleRule::floor, MxScaleRule::rceil, MxScaleRule::even})
      for (DType w : {DType::f8_e4m3, DType::f4_e2m1}) {
        const MxInput input{format, rule};
        check<bf16, bf16>(
            {.w = w, .E = 5, .P = 30, .N = 24, .K = 320, .counts = routings(5, 28), .gap = 3, .input = input});
        check<float, float>({.w = w, .E = 5, .P = 30, .N = 24, .K = 96, .counts = routings(5, 28), .input = input});
      }
}

TEST(GroupedLinearCuda, EqualsTheReferenceAtTheSizesOfALayer) {
  check<bf16, bf16>({.E = 9, .P = 64, .N = 1024, .K = 2304, .counts = routings(9, 64)});
  check<bf16, bf16>({.E = 9, .P = 300, .N = 260, .K = 2304, .counts = routings(9, 300)});
  check<bf16, bf16>({.w = DType::f4_e2m1, .E = 20, .P = 32, .N = 160, .K = 3584, .counts = routings(20, 32)});
  check<bf16, bf16>({.w = DType::f4_e2m1, .E = 5, .P = 400, .N = 200, .K = 3072, .counts = routings(5, 390)});
  check<bf16, bf16>({.w = DType::f8_e4m3, .E = 5, .P = 300, .N = 130, .K = 1024, .counts = routings(5, 290)});
}

// The forms of cuda_fp4: 4, 8 and 16 pairs a block; an odd number of steps; blocks with one, with several and with a
// part of a tile of rows; scales of which four begin at 4 bytes, and others.
TEST(GroupedLinearCuda, MxFp4WithFewPairsEqualsTheReferenceInEveryForm) {
  const DType f4 = DType::f4_e2m1;
  for (int64_t K : {128, 256, 384, 1152})
    for (const auto& [E, P] : {std::pair<int64_t, int64_t>{40, 16}, {40, 60}, {12, 48}, {6, 90}})
      check<bf16, bf16>({.w = f4, .E = E, .P = P, .N = 200, .K = K, .counts = routings(E, P - 1)});
  // Thousands of tiles, several a block.
  for (const auto& [E, P] : {std::pair<int64_t, int64_t>{300, 200}, {100, 390}, {30, 300}})
    check<bf16, bf16>({.w = f4, .E = E, .P = P, .N = 1000, .K = 128, .counts = routings(E, P)});
  check<bf16, bf16>({.w = f4, .E = 30, .P = 20, .N = 3584, .K = 384, .counts = routings(30, 20)});
  check<bf16, bf16>({.w = f4, .E = 3, .P = 40, .N = 40, .K = 3840, .counts = routings(3, 40)});
  check<bf16, bf16>({.w = f4, .E = 3, .P = 40, .N = 40, .K = 3968, .counts = routings(3, 40)});
  check<bf16, bf16>({.w = f4, .E = 3, .P = 40, .N = 40, .K = 6144, .counts = routings(3, 40)});
  for (int64_t gap : {32, 34})
    check<bf16, bf16>({.w = f4, .E = 7, .P = 6, .N = 48, .K = 256, .counts = routings(7, 6), .w_gap = gap});
}

// Outputs and columns are whole tiles here, as the row for many pairs an expert wants them.
TEST(GroupedLinearCuda, ManyPairsAnExpertEqualTheReferenceAtEveryTileEdge) {
  for (DType w : {DType::bf16, DType::f8_e4m3, DType::f8_e5m2, DType::f4_e2m1}) {
    for (int64_t P : {33, 64, 65, 128, 129, 256, 257, 530})
      check<bf16, bf16>({.w = w,
                         .E = 3,
                         .P = P,
                         .N = 128,
                         .K = 256,
                         .counts = {all_to(3, 0, P), all_to(3, 2, P), all_to(3, 1, P - 1), routings(3, P)[1]}});
    const int64_t K = w == DType::f4_e2m1 ? 128 : 64;
    check<bf16, float>({.w = w, .E = 5, .P = 700, .N = 256, .K = 128, .counts = routings(5, 690), .gap = 8});
    check<bf16, bf16>({.w = w, .E = 40, .P = 700, .N = 128, .K = K, .counts = routings(40, 700), .rows = false});
    check<bf16, bf16>({.w = w, .E = 4, .P = 90, .N = 128, .K = K, .counts = routings(4, 80), .gap = 16, .column = 8});
    check<bf16, bf16>({.w = w, .E = 4, .P = 90, .N = 128, .K = K, .counts = routings(4, 80), .gap = 3});
    check<bf16, bf16>({.w = w, .E = 4, .P = 90, .N = 128, .K = K, .counts = routings(4, 80), .w_gap = 16});
  }
  const DType f4 = DType::f4_e2m1;
  check<bf16, bf16>({.w = f4, .E = 1030, .P = 16500, .N = 128, .K = 128, .counts = routings(1030, 16500)});
  check<bf16, bf16>({.w = f4, .E = 4, .P = 90, .N = 128, .K = 128, .counts = routings(4, 80), .stride = 3});
}

// The rows that exact calls may choose: a pair alone, so in tiles of another size, against the same pair among many.
TEST(GroupedLinearCuda, APairsBitsDoNotDependOnItsCompany) {
  constexpr int64_t E = 4, P = 150, N = 130, K = 1024, kAlone = 3;
  for (DType w : {DType::bf16, DType::f8_e4m3, DType::f4_e2m1})
    for (const char* row : {"cuda_stream", "cuda_fp4", "cuda"}) {
      if (w != DType::f4_e2m1 && std::string_view(row) == "cuda_fp4") continue;
      SCOPED_TRACE(str(dtype_name(w), " ", row));
      Problem<bf16, float> p({.w = w, .E = E, .P = P, .N = N, .K = K, .counts = {{40, 3, 0, 107}}});
      const int64_t pairs[kAlone] = {7, 41, 149}, experts[kAlone] = {0, 1, 3};
      Guarded<int32_t> row_alone({kAlone}), begin_alone({kAlone, E + 1});
      Guarded<float> out_alone({kAlone, N});
      p.c.array("row alone", row_alone);
      p.c.array("begin alone", begin_alone);
      p.c.array("out alone", out_alone, sum_bound<float>(K));
      p.c.fill = [&, fill = p.c.fill](Rng& rng) {
        fill(rng);
        for (int64_t i = 0; i < kAlone; ++i) {
          row_alone[i] = p.row[pairs[i]];
          for (int64_t e = 0; e <= E; ++e) begin_alone[i * (E + 1) + e] = e > experts[i] ? 1 : 0;
        }
      };
      p.c.call = [&, call = p.c.call](const Exec& ex, const EffectCase::At& at) {
        call(ex, at);
        const std::vector<Matrix> all = p.w.at(at, {}, 1);
        for (int64_t i = 0; i < kAlone; ++i)
          grouped_linear(ex, {.x = at(p.x),
                              .row = View<const int32_t>(at(row_alone).data + i, {1}),
                              .expert_begin = View<const int32_t>(at(begin_alone).data + i * (E + 1), {E + 1}),
                              .w = all,
                              .out = AnyView(at(out_alone)).rows(i, 1)});
      };
      ASSERT_TRUE(p.c.run_row("grouped_linear", row));
      for (int64_t i = 0; i < kAlone; ++i)
        EXPECT_EQ(std::memcmp(&out_alone[i * N], &p.out[pairs[i] * N], N * sizeof(float)), 0) << "pair " << pairs[i];
    }
}

// A rounding of gate or up may fall otherwise than the reference's, and the activation is the fast one.
constexpr Bound kGatedBound{.relative = 0x1p-5, .absolute = 0x1p-9, .share = 0.1};

TEST(GroupedLinearCuda, GateAndUpProjectionsWithTheirActivationEqualTheReference) {
  for (DType w : {DType::bf16, DType::f8_e4m3, DType::f8_e5m2, DType::f4_e2m1})
    for (ActivationKind gate : {ActivationKind::swiglu, ActivationKind::situ, ActivationKind::sigmoid_gate}) {
      const Form f{.w = w, .E = 7, .P = 40, .N = 72, .K = 640, .counts = routings(7, 37), .gate = gate};
      Problem<bf16, bf16>(f, kGatedBound).run();
      Form many = f, uneven = f;
      many.P = 150, many.counts = routings(7, 150), many.N = 33;
      Problem<bf16, bf16>(many, kGatedBound).run();
      uneven.stride = 3, uneven.gap = 8, uneven.input = {DType::f8_e4m3, MxScaleRule::even};
      if (w != DType::bf16) Problem<bf16, bf16>(uneven, kGatedBound).run();
    }
}

// What two calls and an activation make of the same inputs, to the bit.
TEST(GroupedLinearCuda, OnePassOfGateAndUpHasTheBitsOfTwoCallsAndAnActivation) {
  for (DType w : {DType::bf16, DType::f4_e2m1})
    for (ActivationKind gate : {ActivationKind::swiglu, ActivationKind::situ, ActivationKind::sigmoid_gate}) {
      constexpr int64_t P = 40, N = 72;
      Problem<bf16, bf16> p({.w = w, .E = 7, .P = P, .N = N, .K = 640, .counts = routings(7, 37), .gate = gate},
                            kGatedBound);
      Guarded<bf16> apart({P, N}), up({P, N});
      p.c.array("apart", apart, kGatedBound);
      p.c.array("up", up, {.relative = 0x1p-7, .absolute = 1e-4});
      p.c.call = [&, call = p.c.call](const Exec& ex, const EffectCase::At& at) {
        call(ex, at);
        const std::vector<Matrix> first = p.w.at(at, {}, 1), second = p.up_w.at(at, {}, 1);
        GroupedLinearArgs a{.x = at(p.x), .row = at(p.row), .expert_begin = at(p.begin), .w = first, .out = at(apart)};
        EXPECT_TRUE(!at.on_device() || grouped_linear_gates(ex, [&] {
          GroupedLinearArgs both = a;
          both.up_w = second;
          return both;
        }()));
        grouped_linear(ex, a);
        a.w = second, a.out = at(up);
        grouped_linear(ex, a);
        activation(ex,
                   {.kind = gate, .beta = 1.5f, .linear_beta = 2, .gate = at(apart), .up = at(up), .out = at(apart)});
      };
      for (const char* row : {"cuda_stream", "cuda_fp4"}) {
        if (w != DType::f4_e2m1 && std::string_view(row) == "cuda_fp4") continue;
        ASSERT_TRUE(p.c.run_row("grouped_linear", row)) << p.c.refused;
        EXPECT_EQ(std::memcmp(&apart[0], &p.out[0], P * N * sizeof(bf16)), 0) << row;
      }
    }
}

TEST(GroupedLinearCuda, NoPairsOrNoOutputsIsLegal) {
  check<bf16, bf16>({.E = 3, .P = 0, .N = 16, .K = 64, .counts = {{0, 0, 0}}});
  check<bf16, bf16>({.E = 3, .P = 4, .N = 0, .K = 64, .counts = {{1, 0, 2}}});
}

TEST(GroupedLinearCuda, NaNStaysWithItsPairAndItsExpertsRow) {
  for (DType wtype : {DType::bf16, DType::f8_e4m3, DType::f8_e5m2, DType::f4_e2m1})
    for (int64_t P : {9, 150}) {
      Bound bound = sum_bound<bf16>(128);
      bound.share = 1;  // a NaN has many bit patterns
      Problem<bf16, bf16> p(
          {.w = wtype, .E = 3, .P = P, .N = 128, .K = 128, .counts = {{4, static_cast<int32_t>(P) - 5, 1}}}, bound);
      const auto fill = p.c.fill;
      p.c.fill = [&](Rng& rng) {
        fill(rng);
        p.x[p.row[2] * 128 + 40] = to_bf16(NAN);
        if (wtype == DType::bf16)
          p.w.code(1, 17, 40) = p.w.code(1, 17, 41) = 0xff;
        else
          p.w.scale(1, 17, 1) = 255;
      };
      p.run();
    }
}

// Every code in a row of its own, at every scale in turn; x is one. Weights below 2^-126 may count as zero.
TEST(GroupedLinearCuda, EveryCodeAndEveryScaleIsUnpackedExactly) {
  for (DType wtype : {DType::f8_e4m3, DType::f8_e5m2, DType::f4_e2m1})
    for (int64_t P : {3, 150}) {
      constexpr int64_t N = 256, K = 128;
      Problem<bf16, float> p({.w = wtype, .E = 2, .P = P, .N = N, .K = K, .counts = {{1, static_cast<int32_t>(P) - 1}}},
                             {.absolute = 0x1p-124});
      p.c.fill = [&, fill = p.c.fill](Rng& rng) {
        fill(rng);
        const auto turn = static_cast<int64_t>(rng() % 256);
        for (int64_t i = 0; i < p.x.size(); ++i) p.x[i] = to_bf16(1.0f);
        for (int64_t e = 0; e < 2; ++e)
          for (int64_t n = 0; n < N; ++n) {
            const int64_t bytes = wtype == DType::f4_e2m1 ? K / 2 : K, blocks = K / kMxBlock, at = (n * 7 + e) % bytes;
            for (int64_t b = 0; b < bytes; ++b) p.w.code(e, n, b) = b == at ? static_cast<uint8_t>(n) : 0;
            for (int64_t b = 0; b < blocks; ++b)
              p.w.scale(e, n, b) = at / (bytes / blocks) == b ? static_cast<uint8_t>(n * 37 + turn) : uint8_t{127};
          }
      };
      p.run();
    }
}

TEST(GroupedLinearCuda, APairWhoseRowIsNoneOfTheInputsGetsZerosAndRaisesItsFault) {
  for (DType wtype : {DType::bf16, DType::f4_e2m1})
    for (int64_t P : {9, 150}) {
      Problem<bf16, bf16> p(
          {.w = wtype, .E = 3, .P = P, .N = 128, .K = 128, .counts = {{4, static_cast<int32_t>(P) - 6, 1}}});
      int32_t wrong[2] = {};
      p.c.fill = [&, fill = p.c.fill](Rng& rng) {
        fill(rng);
        p.row[3] = static_cast<int32_t>(p.R), p.row[7] = -1;
      };
      p.c.reference = [&](const Exec& ex, const EffectCase::At& at) {
        for (int i : {0, 1}) std::swap(p.row[i == 0 ? 3 : 7], wrong[i]);
        p.c.call(ex, at);
        for (int i : {0, 1}) std::swap(p.row[i == 0 ? 3 : 7], wrong[i]);
        for (int64_t n = 0; n < 128; ++n) p.out[3 * 128 + n] = p.out[7 * 128 + n] = to_bf16(0);
      };
      p.c.faults = static_cast<uint32_t>(Fault::row);
      p.run();
    }
}

TEST(GroupedLinearCuda, UnderWrongBoundariesEveryPairGetsZerosAndTheFaultIsRaised) {
  for (int64_t P : {9, 150})
    for (int wrong = 0; wrong < 4; ++wrong) {
      const auto most = static_cast<int32_t>(P);
      Problem<bf16, bf16> p({.E = 4, .P = P, .N = 128, .K = 64, .counts = {{2, 0, 3, 1}}});
      p.c.fill = [&, fill = p.c.fill](Rng& rng) {
        fill(rng);
        if (wrong == 0) p.begin[0] = 1;
        if (wrong == 1) p.begin[2] = 1;
        if (wrong == 2) p.begin[4] = most + 1;
        if (wrong == 3) p.begin[1] = -1;
        for (int64_t i = 0; i < P; ++i) p.row[i] = static_cast<int32_t>(i % p.R);
      };
      p.c.reference = [&](const Exec&, const EffectCase::At&) {
        for (int64_t i = 0; i < p.out.size(); ++i) p.out[i] = to_bf16(0);
      };
      p.c.faults = static_cast<uint32_t>(Fault::boundaries);
      p.run();
    }
}

}  // namespace
}  // namespace kdelta::test
