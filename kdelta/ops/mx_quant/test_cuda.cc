#include "kdelta/core/fault.h"
#include "kdelta/ops/mx_quant/variants.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {
namespace {

constexpr DType kFormats[] = {DType::f8_e4m3, DType::f8_e5m2, DType::f4_e2m1};
constexpr MxScaleRule kRules[] = {MxScaleRule::floor, MxScaleRule::rceil, MxScaleRule::even};

struct Form {
  DType format;
  MxScaleRule rule;
  int64_t T = 3, N = 64, gap = 0;
  bool situ = false, padded_scale = false;
  std::vector<int64_t> counts = {};
};

template <class In>
void check(const Form& f, uint32_t faults = 0) {
  SCOPED_TRACE(str("format ", dtype_name(f.format), " rule ", static_cast<int>(f.rule), " N ", f.N, " gap ", f.gap));
  const int64_t columns = f.situ ? 2 * f.N : f.N, bytes = mx_code_bytes(f.format, f.N), blocks = mx_scale_bytes(f.N);
  Guarded<In> x({f.T, columns + f.gap});
  Guarded<uint8_t> codes({f.T, bytes + f.gap}), scale({f.T, f.padded_scale ? blocks + blocks % 2 : blocks});
  Guarded<int64_t> counts({static_cast<int64_t>(f.counts.size())});
  EffectCase c;
  c.array("x", x);
  // situ is rounded to bf16 first, and a value between two of them may fall to either: one code.
  c.array("codes", codes, {.absolute = f.situ ? 1.0 : 0.0});
  c.array("scale", scale);
  c.array("counts", counts);
  c.fill = [&](Rng& rng) {
    fill_normal(x, rng, 2.0f);
    // Blocks of zeros, of every size from the smallest to the largest number, and with a NaN or an infinity.
    for (int64_t t = 0; t < f.T && !f.situ; ++t)
      for (int64_t b = 0; b * 32 < f.N; ++b) {
        const float size = std::ldexp(1.0f, static_cast<int>((t * 97 + b * 31) % 250) - 125);
        for (int64_t i = b * 32; i < std::min(f.N, b * 32 + 32); ++i) {
          In& v = x[t * (columns + f.gap) + i];
          v = from_float<In>(b % 5 == 3 ? -0.0f : to_float(v) * size);
        }
        if ((t + b) % 11 == 5) x[t * (columns + f.gap) + b * 32] = from_float<In>(t % 2 == 0 ? NAN : INFINITY);
      }
    for (size_t e = 0; e < f.counts.size(); ++e) counts[static_cast<int64_t>(e)] = f.counts[e];
  };
  auto call = [&](const Exec& ex, const EffectCase::At& at) {
    mx_quantize(ex, {.format = f.format,
                     .rule = f.rule,
                     .x = AnyConstView(at(x)).columns(0, columns),
                     .codes = View<uint8_t>(at(codes).data, {f.T, bytes}, {bytes + f.gap, 1}),
                     .scale = at(scale),
                     .situ = f.situ,
                     .group_counts = f.counts.empty() ? View<const int64_t>() : View<const int64_t>(at(counts))});
  };
  c.call = call;
  if (faults != 0) c.reference = [](const Exec&, const EffectCase::At&) {};  // no row is in use
  c.faults = faults;
  c.run("mx_quantize", mx_quantize_variants());
}

TEST(MxQuantizeCuda, HasTheReferencesBitsForEveryFormatRuleAndWidth) {
  for (DType format : kFormats)
    for (MxScaleRule rule : kRules)
      for (int64_t N : {1, 7, 31, 32, 33, 40, 256, 2048, 2056, 7168}) {
        check<bf16>({.format = format, .rule = rule, .N = N});
        check<float>({.format = format, .rule = rule, .T = 12, .N = N, .gap = 3, .padded_scale = true});
      }
}

TEST(MxQuantizeCuda, SituBeforeItIsTheReferencesWithinACode) {
  for (DType format : kFormats)
    for (int64_t N : {32, 100, 2048}) {
      check<bf16>({.format = format, .rule = MxScaleRule::rceil, .N = N, .situ = true});
      check<float>({.format = format, .rule = MxScaleRule::floor, .N = N, .gap = 5, .situ = true});
    }
}

TEST(MxQuantizeCuda, RowsBehindTheCountsAreUntouchedAndWrongCountsUseNoRow) {
  check<bf16>({.format = DType::f8_e4m3, .rule = MxScaleRule::floor, .T = 9, .counts = {2, 0, 4}});
  check<bf16>({.format = DType::f8_e4m3, .rule = MxScaleRule::floor, .T = 9, .counts = {5, 5}},
              static_cast<uint32_t>(Fault::count));
  check<bf16>({.format = DType::f4_e2m1, .rule = MxScaleRule::floor, .T = 9, .counts = {5, -1}},
              static_cast<uint32_t>(Fault::count));
}

template <class Out>
void check_dequantize(DType format, int64_t N, int64_t gap) {
  SCOPED_TRACE(str("format ", dtype_name(format), " N ", N, " gap ", gap));
  constexpr int64_t T = 17;
  const int64_t bytes = mx_code_bytes(format, N), blocks = mx_scale_bytes(N);
  Guarded<uint8_t> codes({T, bytes + gap}), scale({T, blocks});
  Guarded<Out> out({T, N + gap});
  EffectCase c;
  c.array("codes", codes);
  c.array("scale", scale);
  // Bit for bit but for the payload of NaN.
  c.array("out", out, {.absolute = 1e-300});
  c.fill = [&](Rng& rng) {
    for (int64_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(rng());
    for (int64_t i = 0; i < scale.size(); ++i) scale[i] = static_cast<uint8_t>(rng());
    scale[0] = 255, scale[scale.size() - 1] = 0;
  };
  c.call = [&](const Exec& ex, const EffectCase::At& at) {
    mx_dequantize(ex, {.format = format,
                       .codes = View<const uint8_t>(at(codes).data, {T, bytes}, {bytes + gap, 1}),
                       .scale = at(scale),
                       .out = AnyView(at(out)).columns(0, N)});
  };
  c.run("mx_dequantize", mx_dequantize_variants());
}

TEST(MxDequantizeCuda, HasTheReferencesBitsForEveryFormatWidthAndType) {
  for (DType format : kFormats)
    for (int64_t N : {1, 7, 32, 40, 256, 2056})
      for (int64_t gap : {0, 3, 8}) {
        check_dequantize<float>(format, N, gap);
        check_dequantize<bf16>(format, N, gap);
      }
}

}  // namespace
}  // namespace kdelta::test
