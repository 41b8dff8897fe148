// Two projections in a row as one matrix: F = b a, for the decay gate's f_b and f_a.
#pragma once

#include <memory>

#include "kdelta/core/arena.h"
#include "kdelta/core/matrix.h"
#include "kdelta/core/options.h"

namespace kdelta {

// Null, or why the product of b and a has no place beside the weights it is used with: factors must be f32 or bf16.
const char* refuse_composition(DType b, DType a);
// bf16 when both factors are, else f32.
DType composed_dtype(DType b, DType a);

// Makes products with a team of threads of its own, which starts with the first of them.
class Composer {
 public:
  explicit Composer(const Options& options);
  ~Composer();

  // Takes the threads and memory that compose() of such factors needs, so that it cannot fail.
  void prepare(const Matrix& b, const Matrix& a);

  // out[n, :] = sum_r b[n, r] a[r, :], products and sums in fp32, rounded once to composed_dtype. b [N, R], a [R, D],
  // out [N, D] dense. The bits of a row depend on that row of b and on a alone, so the
  // part of a rank is a part of the whole product.
  void compose(const Matrix& b, const Matrix& a, void* out);

 private:
  struct Work;
  void run(const Matrix& b, const Matrix& w, void* out, int64_t begin, int64_t count, Arena& arena, bool planning);

  Options options_;
  std::unique_ptr<Work> work_;
};

}  // namespace kdelta
