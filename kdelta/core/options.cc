#include "kdelta/core/options.h"

#include "kdelta/core/error.h"

namespace kdelta {

void Options::parse_force(std::string_view text) {
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const size_t colon = item.find(':');
    if (colon == std::string_view::npos || colon == 0 || colon + 1 == item.size())
      fail(ErrorCode::invalid_argument, "force: '", item, "', expected OP:VARIANT[,OP:VARIANT...]");
    force[std::string(item.substr(0, colon))] = std::string(item.substr(colon + 1));
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
  }
}

}  // namespace kdelta
