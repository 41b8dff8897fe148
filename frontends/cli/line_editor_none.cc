// A program built without libedit: no editing but the terminal's own, no history.
#include "frontends/cli/line_input.h"

namespace kdelta::cli {

std::unique_ptr<LineEditor> make_line_editor(const std::string&) {
  return nullptr;
}

}  // namespace kdelta::cli
