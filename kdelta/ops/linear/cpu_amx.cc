#include "kdelta/ops/common/cpu/amx_tiles.h"
#include "kdelta/ops/common/cpu/dot_amx.h"
#include "kdelta/ops/common/cpu/packed.h"
#include "kdelta/ops/linear/cpu_kernel.h"

namespace kdelta {

void linear_amx(const Exec& ex, const LinearArgs& a, const LinearDesc&, void* scratch) {
  project_packed<TileKernel<AmxTiles>>(ex, linear_projections(a), scratch);
}

}  // namespace kdelta
