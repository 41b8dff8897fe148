#include "kdelta/ops/linear/variants.h"
#include "kdelta/ops/mx_quant/mx_quant.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {
namespace {

constexpr DType kWeightTypes[] = {DType::f32, DType::bf16, DType::f8_e4m3, DType::f8_e5m2, DType::f4_e2m1};

// A matrix whose bytes are arrays of a case. Values are of the order of one.
class CaseMatrix {
 public:
  CaseMatrix(DType dtype, int64_t N, int64_t K, int64_t gap = 0)
      : matrix_(dense_matrix(nullptr, dtype, N, K)),
        codes_({std::max<int64_t>(N, 1), matrix_.row_bytes + gap}),
        scales_({std::max<int64_t>(N, 1), std::max<int64_t>(matrix_.scale_row_bytes + gap, 1)}) {
    matrix_.row_bytes += gap;
    matrix_.scale_row_bytes += gap;
  }
  void add_to(EffectCase& c, int64_t shift = 0) {
    c.array("w", codes_, {}, shift);
    c.array("w scale", scales_, {}, shift);
  }
  void fill(Rng& rng) {
    std::normal_distribution<float> normal;
    for (int64_t n = 0; n < matrix_.rows; ++n) {
      uint8_t* row = &codes_[n * matrix_.row_bytes];
      for (int64_t k = 0; k < matrix_.cols; ++k) {
        const float v = normal(rng);
        const bf16 half = to_bf16(v);
        if (matrix_.dtype == DType::f32) std::memcpy(row + 4 * k, &v, 4);
        if (matrix_.dtype == DType::bf16) std::memcpy(row + 2 * k, &half, 2);
        if (matrix_.dtype == DType::f4_e2m1 && k % 2 == 0) row[k / 2] = static_cast<uint8_t>(rng());
        // Magnitudes up to 15: the exponent's lower half.
        if (matrix_.dtype == DType::f8_e4m3) row[k] = static_cast<uint8_t>(rng() & 0xd7);
        if (matrix_.dtype == DType::f8_e5m2) row[k] = static_cast<uint8_t>(rng() & 0xbf);
      }
      for (int64_t b = 0; matrix_.is_mx() && b < matrix_.cols / kMxBlock; ++b)
        scales_[n * matrix_.scale_row_bytes + b] = static_cast<uint8_t>(122 + rng() % 4);
    }
  }
  Matrix at(const EffectCase::At& at, const MxInput& input = {}) {
    Matrix m = matrix_;
    m.data = at(codes_).data, m.input = input;
    if (m.is_mx()) m.scale = at(scales_).data;
    return m;
  }
  uint8_t& code(int64_t n, int64_t byte) { return codes_[n * matrix_.row_bytes + byte]; }
  uint8_t& scale(int64_t n, int64_t block) { return scales_[n * matrix_.scale_row_bytes + block]; }

 private:
  Matrix matrix_;
  Guarded<uint8_t> codes_, scales_;
};

// The rows whose sums are fp32 throughout; cuda_fp8 has tests of its own (test_cuda_codes.cc).
std::vector<LinearVariant> rows_of_fp32_sums() {
  std::vector<LinearVariant> rows;
  for (const LinearVariant& row : linear_variants())
    if (std::string_view(row.name) != "cuda_fp8") rows.push_back(row);
  return rows;
}

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
  int64_t T = 1, N = 1, K = 1;
  int64_t gap = 0, column = 0, shift = 0;  // of the rows of x and out, and of every array
  int64_t w_gap = 0, out_gap = 0;
  bool addend = false, in_place = false;
  std::vector<int64_t> more = {};
  bool own_inputs = false;  // of every other part behind the first
  MxInput input = {};
};

template <class In, class Out>
void check(const Form& f) {
  SCOPED_TRACE(str(dtype_name(f.w), " T ", f.T, " N ", f.N, " K ", f.K, " gap ", f.gap, " column ", f.column, " shift ",
                   f.shift));
  Guarded<In> x({f.T, f.K + f.gap});
  Guarded<Out> addend({f.T, f.N + f.gap + f.out_gap}), out({f.T, f.N + f.gap + f.out_gap});
  CaseMatrix w(f.w, f.N, f.K, f.w_gap);
  std::vector<std::unique_ptr<CaseMatrix>> more_w;
  std::vector<std::unique_ptr<Guarded<Out>>> more_out;
  std::vector<std::unique_ptr<Guarded<In>>> more_x;
  EffectCase c;
  c.array("x", x, {}, f.shift);
  w.add_to(c, f.shift);
  c.array("addend", addend, {}, f.shift);
  c.array("out", out, sum_bound<Out>(f.K), f.shift);
  for (int64_t rows : f.more) {
    more_w.push_back(std::make_unique<CaseMatrix>(f.w, rows, f.K));
    more_w.back()->add_to(c);
    more_out.push_back(std::make_unique<Guarded<Out>>(Shape{f.T, rows + f.gap + f.out_gap}));
    c.array("more out", *more_out.back(), sum_bound<Out>(f.K), f.shift);
    more_x.push_back(std::make_unique<Guarded<In>>(Shape{f.T, f.K + f.gap}));
    c.array("more x", *more_x.back(), {}, f.shift);
  }
  c.fill = [&](Rng& rng) {
    fill_normal(x, rng);
    w.fill(rng);
    fill_normal(f.in_place ? out : addend, rng);
    for (auto& m : more_w) m->fill(rng);
    for (auto& m : more_x) fill_normal(*m, rng);
  };
  c.call = [&](const Exec& ex, const EffectCase::At& at) {
    const AnyView to = AnyView(at(out)).columns(f.column, f.N);
    std::vector<LinearPart> parts;
    for (size_t i = 0; i < f.more.size(); ++i)
      parts.push_back(
          {more_w[i]->at(at, f.input), AnyView(at(*more_out[i])).columns(f.column, f.more[i]),
           f.own_inputs && i % 2 == 0 ? AnyConstView(at(*more_x[i])).columns(f.column, f.K) : AnyConstView()});
    linear(ex, {.x = AnyConstView(at(x)).columns(f.column, f.K),
                .w = w.at(at, f.input),
                .addend = f.in_place ? AnyConstView(to)
                          : f.addend ? AnyConstView(at(addend)).columns(f.column, f.N)
                                     : AnyConstView(),
                .out = to,
                .more = parts});
  };
  c.run("linear", rows_of_fp32_sums());
}

template <class F>
void for_each_type(F&& f) {
  for (DType w : kWeightTypes) f(w);
}

TEST(LinearCuda, EqualsTheReferenceAtEverySizeAroundTheTileEdges) {
  for_each_type([](DType w) {
    for (int64_t T : {1, 2, 7, 8, 9, 15, 16, 17, 33, 64, 65, 127, 130})
      check<bf16, bf16>({.w = w, .T = T, .N = 72, .K = 96});
    for (int64_t N : {1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 260}) {
      check<bf16, float>({.w = w, .T = 3, .N = N, .K = 128});
      check<bf16, bf16>({.w = w, .T = 70, .N = N, .K = 128});
    }
    for (int64_t K : {32, 64, 160, 512, 544, 1024, 1056, 2304})
      for (int64_t T : {1, 5, 20}) {
        check<bf16, bf16>({.w = w, .T = T, .N = 33, .K = K});
        check<float, float>({.w = w, .T = T, .N = 33, .K = K});
      }
    check<float, bf16>({.w = w, .T = 5, .N = 40, .K = 96});
  });
  for (DType w : {DType::f32, DType::bf16})
    for (int64_t K : {1, 7, 31, 33, 65, 100, 104, 136, 511, 513, 1048})
      for (int64_t T : {1, 19}) {
        check<bf16, bf16>({.w = w, .T = T, .N = 17, .K = K});
        check<float, float>({.w = w, .T = T, .N = 17, .K = K});
      }
}

TEST(LinearCuda, EqualsTheReferenceAtTheSizesOfALayer) {
  for (DType w : {DType::bf16, DType::f8_e4m3, DType::f4_e2m1})
    for (int64_t T : {1, 4, 12, 40}) check<bf16, bf16>({.w = w, .T = T, .N = 130, .K = 7168});
  check<bf16, bf16>({.w = DType::bf16, .T = 300, .N = 264, .K = 2304});
  check<bf16, bf16>({.w = DType::f4_e2m1, .T = 300, .N = 264, .K = 1024});
  check<bf16, float>({.w = DType::bf16, .T = 2, .N = 20, .K = 32768});
  check<bf16, bf16>({.w = DType::bf16, .T = 100, .N = 131, .K = 7168, .out_gap = 1, .addend = true});  // split columns
  // More tiles than multiprocessors, so that a block goes through several.
  for (DType w : {DType::bf16, DType::f4_e2m1}) check<bf16, bf16>({.w = w, .T = 1100, .N = 4600, .K = 64});
  check<bf16, float>({.w = DType::f8_e4m3, .T = 600, .N = 520, .K = 224});
}

TEST(LinearCuda, StridesAndAlignmentAreFreeGapsStayAndAddendMayBeOut) {
  for_each_type([](DType w) {
    for (int64_t T : {1, 3, 50})
      for (bool in_place : {false, true}) {
        check<bf16, bf16>(
            {.w = w, .T = T, .N = 72, .K = 128, .gap = 13, .column = 5, .addend = true, .in_place = in_place});
        check<bf16, bf16>(
            {.w = w, .T = T, .N = 72, .K = 128, .gap = 64, .column = 8, .addend = true, .in_place = in_place});
        check<float, float>(
            {.w = w, .T = T, .N = 70, .K = 64, .gap = 4, .column = 3, .addend = true, .in_place = in_place});
      }
    for (bool addend : {false, true}) {
      check<bf16, float>({.w = w, .T = 50, .N = 72, .K = 128, .gap = 64, .column = 8, .addend = addend});
      check<bf16, bf16>({.w = w, .T = 100, .N = 75, .K = 128, .out_gap = 1, .addend = addend, .more = {71, 129}});
      check<bf16, float>({.w = w, .T = 20, .N = 75, .K = 128, .addend = addend, .more = {70, 129}});
    }
    check<bf16, bf16>({.w = w, .T = 5, .N = 48, .K = 128, .shift = 4, .addend = true});
    check<bf16, float>({.w = w, .T = 33, .N = 48, .K = 128, .shift = 8, .w_gap = 16});
    check<bf16, bf16>({.w = w, .T = 33, .N = 48, .K = 128, .w_gap = 4});
  });
}

TEST(LinearCuda, PartsAreProjectedEachToItsOwnOutput) {
  for_each_type([](DType w) {
    for (int64_t T : {1, 6, 30}) {
      check<bf16, bf16>(
          {.w = w, .T = T, .N = 20, .K = 256, .gap = 3, .addend = true, .more = {1, 0, 16, 130, 64, 3, 8}});
      check<float, float>({.w = w, .T = T, .N = 20, .K = 64, .more = {7, 65}});
      for (int64_t gap : {0, 8})
        check<bf16, bf16>({.w = w, .T = T, .N = 96, .K = 128, .gap = gap, .more = {64, 17, 130}, .own_inputs = true});
      check<float, float>({.w = w, .T = T, .N = 20, .K = 64, .more = {7, 65}, .own_inputs = true});
    }
  });
}

TEST(LinearCuda, NoTokensOrNoOutputsIsLegal) {
  check<bf16, bf16>({.T = 0, .N = 16, .K = 64});
  check<bf16, bf16>({.T = 4, .N = 0, .K = 64, .more = {5}});
  check<float, float>({.T = 4, .N = 0, .K = 64});
}

TEST(LinearCuda, InputsAreQuantisedByTheMatrixsRule) {
  for (DType format : {DType::f8_e4m3, DType::f8_e5m2})
    for (MxScaleRule rule : {MxScaleRule::floor, MxScaleRule::rceil, MxScaleRule::even})
      for (DType w : {DType::f8_e4m3, DType::f4_e2m1, DType::bf16})
        for (int64_t T : {1, 19}) {
          check<bf16, bf16>({.w = w, .T = T, .N = 24, .K = 320, .gap = 3, .input = {format, rule}});
          check<float, float>({.w = w, .T = T, .N = 24, .K = 96, .more = {9}, .input = {format, rule}});
        }
}

// x given as codes: every byte, every scale where products stay in range.
template <class Out>
void check_codes(DType format, DType wtype, int64_t T) {
  SCOPED_TRACE(str(dtype_name(format), " x ", dtype_name(wtype), " T ", T));
  constexpr int64_t N = 24, K = 320;
  Guarded<uint8_t> codes({T, K + 7}), scale({T, K / kMxBlock});
  Guarded<Out> out({T, N});
  CaseMatrix w(wtype, N, K);
  EffectCase c;
  c.array("codes", codes);
  c.array("scale", scale);
  w.add_to(c);
  c.array("out", out, sum_bound<Out>(K));
  c.fill = [&](Rng& rng) {
    w.fill(rng);
    for (int64_t i = 0; i < codes.size(); ++i)
      codes[i] = static_cast<uint8_t>(rng() & (format == DType::f8_e4m3 ? 0xd7 : 0xbf));
    for (int64_t i = 0; i < scale.size(); ++i) scale[i] = static_cast<uint8_t>(120 + rng() % 6);
  };
  c.call = [&](const Exec& ex, const EffectCase::At& at) {
    linear(ex, {.x = AnyConstView(at(codes).data, format, {T, K}, {K + 7, 1}),
                .w = w.at(at),
                .out = at(out),
                .x_scale = at(scale)});
  };
  c.run("linear", rows_of_fp32_sums());
}

TEST(LinearCuda, CodesAreMultipliedAsTheValuesThatTheyStandFor) {
  for (DType format : {DType::f8_e4m3, DType::f8_e5m2})
    for (DType w : {DType::f8_e4m3, DType::bf16})
      for (int64_t T : {1, 19}) {
        check_codes<bf16>(format, w, T);
        check_codes<float>(format, w, T);
      }
}

// Every byte of codes in a row of its own, at every scale code in turn; x is one. Products that fp32 cannot hold are
// infinite on both sides, weights of NaN are NaN.
TEST(LinearCuda, EveryCodeAndEveryScaleIsUnpackedExactly) {
  for (DType wtype : {DType::f8_e4m3, DType::f8_e5m2, DType::f4_e2m1})
    for (int64_t T : {1, 17}) {
      SCOPED_TRACE(str(dtype_name(wtype), " T ", T));
      constexpr int64_t N = 256, K = 128;
      Guarded<bf16> x({T, K});
      Guarded<float> out({T, N});
      CaseMatrix w(wtype, N, K);
      EffectCase c;
      c.array("x", x);
      w.add_to(c);
      // Weights below 2^-126 may count as zero; a product has two of them at most.
      c.array("out", out, {.absolute = 0x1p-124});
      c.fill = [&](Rng& rng) {
        const auto turn = static_cast<int64_t>(rng() % 256);
        for (int64_t i = 0; i < x.size(); ++i) x[i] = to_bf16(1.0f);
        for (int64_t n = 0; n < N; ++n) {
          const int64_t bytes = wtype == DType::f4_e2m1 ? K / 2 : K;
          for (int64_t b = 0; b < bytes; ++b) w.code(n, b) = b == n * 7 % bytes ? static_cast<uint8_t>(n) : 0;
          for (int64_t b = 0; b < K / kMxBlock; ++b) {
            const bool here = n * 7 % bytes / (bytes / (K / kMxBlock)) == b;
            w.scale(n, b) = here ? static_cast<uint8_t>(n * 37 + turn) : uint8_t{127};
          }
        }
      };
      c.call = [&](const Exec& ex, const EffectCase::At& at) {
        linear(ex, {.x = at(x), .w = w.at(at), .out = at(out)});
      };
      c.run("linear", rows_of_fp32_sums());
    }
}

TEST(LinearCuda, NaNInATokenOrAWeightRowStaysThere) {
  for (DType wtype : {DType::bf16, DType::f8_e4m3, DType::f8_e5m2, DType::f4_e2m1})
    for (int64_t T : {5, 40}) {
      SCOPED_TRACE(str(dtype_name(wtype), " T ", T));
      constexpr int64_t N = 70, K = 128;
      Guarded<bf16> x({T, K}), out({T, N});
      CaseMatrix w(wtype, N, K);
      EffectCase c;
      c.array("x", x);
      w.add_to(c);
      Bound bound = sum_bound<bf16>(K);
      bound.share = 1;  // a NaN may be any
      c.array("out", out, bound);
      c.fill = [&](Rng& rng) {
        fill_normal(x, rng);
        w.fill(rng);
        x[3 * K + 40] = to_bf16(NAN);
        if (wtype != DType::bf16)
          w.scale(17, 1) = 255;
        else
          w.code(17, 40) = w.code(17, 41) = 0xff;
      };
      c.call = [&](const Exec& ex, const EffectCase::At& at) {
        linear(ex, {.x = at(x), .w = w.at(at), .out = at(out)});
      };
      c.run("linear", rows_of_fp32_sums());
    }
}

// A hundred tokens at once against each of some alone, by the row that exact mode chooses.
template <class In>
void expect_exact(DType wtype, int64_t N, int64_t K) {
  SCOPED_TRACE(str(dtype_name(wtype), " N ", N, " K ", K));
  constexpr int64_t T = 100;
  CudaExec device;
  Options options;
  options.exact = true;
  Exec ex = device.exec();
  ex.options = &options;
  Rng rng(static_cast<uint64_t>(K));
  Guarded<In> x({T, K}), all({T, N}), some({T, N});
  CaseMatrix w(wtype, N, K);
  EffectCase memory;  // of the device's copies
  memory.array("x", x);
  w.add_to(memory);
  memory.array("all", all);
  memory.array("some", some);
  const EffectCase::At at(&memory);
  fill_normal(x, rng);
  w.fill(rng);
  memory.upload(device.stream());
  linear(ex, {.x = at(x), .w = w.at(at), .out = at(all)});
  for (const auto& [first, count] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 2}, {37, 9}, {46, 17}, {99, 1}})
    linear(ex,
           {.x = AnyConstView(at(x)).rows(first, count), .w = w.at(at), .out = AnyView(at(some)).rows(first, count)});
  memory.download(device.stream());
  for (int64_t t = 0; t < T; ++t)
    if (t <= 2 || (t >= 37 && t < 63) || t == 99) {
      ASSERT_EQ(std::memcmp(all.data() + t * N, some.data() + t * N, static_cast<size_t>(N) * sizeof(In)), 0) << t;
    }
  EXPECT_TRUE(all.guards_intact() && some.is_poison(3 * N, 34 * N));
}

TEST(LinearCuda, BitsOfATokenDoNotDependOnItsCompanyInExactMode) {
  for (DType w : kWeightTypes)
    for (int64_t K : {128, 896, 2304}) {
      expect_exact<bf16>(w, 200, K);
      expect_exact<float>(w, 200, K);
    }
  expect_exact<bf16>(DType::bf16, 40, 7168);
  expect_exact<bf16>(DType::bf16, 40, 100);  // columns that the tensor-core rows do not take
}

// Rows of bf16 on the device, `stride` elements apart.
class FarRows {
 public:
  FarRows(int64_t rows, int64_t width, int64_t stride)
      : rows_(rows), width_(width), stride_(stride), memory_(kCuda, ((rows - 1) * stride + width) * 2) {}
  AnyView view() const { return AnyView(memory_.data(), DType::bf16, {rows_, width_}, {stride_, 1}); }
  void fill(Stream& stream, uint64_t seed) {
    Rng rng(seed);
    std::normal_distribution<float> normal;
    std::vector<bf16> row(static_cast<size_t>(width_));
    for (int64_t r = 0; r < rows_; ++r) {
      for (bf16& v : row) v = to_bf16(normal(rng));
      copy_async(stream, view().at<bf16>(r), row.data(), width_ * 2);
      stream.synchronize();
    }
  }
  std::vector<bf16> read(Stream& stream) const {
    std::vector<bf16> out(static_cast<size_t>(rows_ * width_));
    for (int64_t r = 0; r < rows_; ++r) copy_async(stream, out.data() + r * width_, view().at<bf16>(r), width_ * 2);
    stream.synchronize();
    return out;
  }

 private:
  int64_t rows_, width_, stride_;
  Buffer memory_;
};

TEST(LinearCuda, RowsPast32BitOffsetsHaveTheBitsOfRowsThatLieTogether) {
  constexpr int64_t T = 18, N = 24, K = 512, kFar = (int64_t{1} << 28) + 64;  // the last rows begin past 2^32 elements
  if (device_free_bytes(kCuda) < int64_t{40} << 30) GTEST_SKIP() << "needs 40 GiB of device memory";
  CudaExec ex(64 << 20);
  for (const LinearVariant& row : rows_of_fp32_sums()) {
    if (machine_refusal(row, EffectCase::device_target()) != nullptr) continue;
    SCOPED_TRACE(row.name);
    ex.force("linear", row.name);
    std::vector<bf16> results[2];
    for (bool far : {false, true}) {
      FarRows x(T, K, far ? kFar : K), w(N, K, far ? kFar : K), out(T, N, far ? kFar : N);
      x.fill(ex.stream(), 1);
      w.fill(ex.stream(), 2);
      Matrix m = dense_matrix(w.view().data, DType::bf16, N, K);
      m.row_bytes = w.view().stride[0] * 2;
      linear(ex, {.x = x.view(), .w = m, .out = out.view()});
      results[far] = out.read(ex.stream());
    }
    EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), results[0].size() * 2), 0);
    EXPECT_NE(results[0][0].bits, results[0][static_cast<size_t>(N)].bits) << "rows of a test must differ";
  }
}

}  // namespace
}  // namespace kdelta::test
