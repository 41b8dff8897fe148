#include "kdelta/ops/common/op.h"

namespace kdelta {

std::string to_string(const Needs& needs) {
  return needs.device == DeviceKind::cpu ? to_string(needs.isa) : to_string(needs.cuda);
}

}  // namespace kdelta
