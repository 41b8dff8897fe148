#include "kdelta/ops/linear/test_tiles.h"

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
#include "kdelta/ops/common/cpu/dot_amx.h"
#include "kdelta/ops/grouped_linear/cpu_packed.h"
#include "kdelta/ops/linear/cpu_kernel.h"
#include "kdelta/ops/linear/emulated_tiles.h"

namespace kdelta::test {

bool tiles_compiled() {
  return true;
}

void linear_emulated(const Exec& ex, const LinearArgs& a) {
  const LinearDesc d{target_of(ex), a.x.dtype, a.w.dtype, a.out.dtype, a.x.dim(0), a.w.cols, a.w.rows};
  Arena::Scope scope(*ex.scratch);
  project_packed<TileKernel<EmulatedTiles>>(ex, linear_projections(a), ex.scratch->take(linear_tile_scratch(d)));
}

void grouped_linear_emulated(const Exec& ex, const GroupedLinearArgs& a) {
  const Matrix& w = a.w[0];
  const GroupedLinearDesc d{
      target_of(ex), a.x.dtype, w.dtype, a.out.dtype, a.out.dim(0), static_cast<int64_t>(a.w.size()), w.cols, w.rows};
  Arena::Scope scope(*ex.scratch);
  grouped_linear_packed<TileKernel<EmulatedTiles>>(ex, a, d, ex.scratch->take(grouped_linear_tile_scratch(d)));
}

}  // namespace kdelta::test
#else

namespace kdelta::test {

bool tiles_compiled() {
  return false;
}
void linear_emulated(const Exec&, const LinearArgs&) {}
void grouped_linear_emulated(const Exec&, const GroupedLinearArgs&) {}

}  // namespace kdelta::test
#endif
