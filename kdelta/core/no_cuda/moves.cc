// Never reached: a build without CUDA has no stream.
#include "kdelta/core/moves.h"

#include "kdelta/core/no_cuda/refuse.h"

namespace kdelta::device {

void move_bytes(Stream& stream, std::span<const Move>) {
  refuse_cuda(stream.device());
}
void fill_uniform(Stream& stream, void*, DType, int64_t, float, float, uint64_t) {
  refuse_cuda(stream.device());
}

}  // namespace kdelta::device
