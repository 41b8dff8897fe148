#include "kdelta/core/trace.h"

namespace kdelta {

TraceSink* profiler_sink() {
  return nullptr;
}

}  // namespace kdelta
