#include "kdelta/ops/embed/cpu_kernel.h"

namespace kdelta {

void embed_avx512(const Exec& ex, const EmbedArgs& args, const EmbedDesc&, void*) {
  embed_cpu<simd::Avx512>(ex, args);
}

}  // namespace kdelta
