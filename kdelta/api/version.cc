#include "kdelta/api/engine.h"

namespace kdelta {

std::string version() {
  return KDELTA_VERSION " (commit " KDELTA_COMMIT ", " KDELTA_COMPILER ")";
}

}  // namespace kdelta
