#include "kdelta/ops/common/cpu/amx_tiles.h"
#include "kdelta/ops/linear/cpu_tiles.h"

namespace kdelta {

void linear_amx(const Exec& ex, const LinearArgs& args, const LinearDesc&, void* scratch) {
  linear_tiles<AmxTiles>(ex, args, scratch);
}

}  // namespace kdelta
