// W8A8: linear with MXFP8 weights that take MXFP8 inputs is the product of the codes that mx_quantize makes of both.
#include <gtest/gtest.h>

#include <cmath>

#include "kdelta/ops/linear/variants.h"
#include "kdelta/ops/mx_quant/test_oracle.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::MxResult;
using test::TestExec;

class W8A8 : public test::OpVariantTest {
 protected:
  W8A8() : OpVariantTest("linear") {}
};
KDELTA_INSTANTIATE_VARIANTS(W8A8, linear_variants());

TEST_P(W8A8, IsTheSumOfProductsOfCodesAndScalesForEveryRule) {
  constexpr int64_t K = 320, N = 48;
  Guarded<bf16> w({N, K});
  test::Rng rng(21);
  fill_normal(w, rng, 0.05f);
  for (const int64_t T : {1, 5, 40})
    for (DType format : {DType::f8_e4m3, DType::f8_e5m2})
      for (MxScaleRule rule : test::kMxRules) {
        MxResult weight = test::quantised(ex, w, format, MxScaleRule::rceil);
        Matrix matrix = dense_matrix(weight.codes.data(), format, N, K, weight.scale.data());
        matrix.input = {format, rule};
        Guarded<bf16> x({T, K});
        fill_normal(x, rng, 3.0f);
        MxResult activation = test::quantised(ex, x, format, rule);
        Guarded<float> out({T, N});
        linear(ex, {.x = x.view(), .w = matrix, .out = out.view()});
        const Matrix rows = dense_matrix(activation.codes.data(), format, T, K, activation.scale.data());
        std::vector<float> a(K), b(K);
        for (int64_t t = 0; t < T; ++t) {
          dequantize_row(rows, t, a.data());
          for (int64_t n = 0; n < N; ++n) {
            dequantize_row(matrix, n, b.data());
            double want = 0, size = 0;
            for (size_t k = 0; k < static_cast<size_t>(K); ++k) {
              want += static_cast<double>(a[k]) * b[k];
              size += std::fabs(static_cast<double>(a[k]) * b[k]);
            }
            ASSERT_NEAR(out[t * N + n], want, 1e-5 * size) << dtype_name(format) << " " << t << ", " << n;
          }
        }
      }
}

}  // namespace
}  // namespace kdelta
