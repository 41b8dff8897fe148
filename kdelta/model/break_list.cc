#include <algorithm>

#include "kdelta/core/error.h"
#include "kdelta/model/model.h"

namespace kdelta {

std::vector<bool> break_list(std::span<const Sublayer> all, std::span<const std::string> also) {
  std::vector<bool> broken;
  for (const Sublayer& s : all) broken.push_back(s.breaks);
  for (const std::string& name : also) {
    const auto found = std::ranges::find(all, name, &Sublayer::name);
    if (found == all.end()) {
      std::string known;
      for (const Sublayer& s : all) known += (known.empty() ? "" : ", ") + s.name;
      fail(ErrorCode::invalid_argument, "break_at: '", name, "', expected one of ", known);
    }
    broken[static_cast<size_t>(found - all.begin())] = true;
  }
  return broken;
}

}  // namespace kdelta
