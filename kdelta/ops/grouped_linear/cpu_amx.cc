#include "kdelta/ops/common/cpu/amx_tiles.h"
#include "kdelta/ops/common/cpu/dot_amx.h"
#include "kdelta/ops/grouped_linear/cpu_packed.h"

namespace kdelta {

void grouped_linear_amx(const Exec& ex, const GroupedLinearArgs& args, const GroupedLinearDesc& d, void* scratch) {
  grouped_linear_packed<TileKernel<AmxTiles>>(ex, args, d, scratch);
}

}  // namespace kdelta
