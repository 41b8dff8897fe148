// What a rename would put another file in the place of.
#pragma once

#include <string>

namespace kdelta {

// A rename asks no file whether it may be replaced. Throws Error(invalid_argument) naming `path` when it is a device, a
// folder or a link, or a file that its owner protected against writing or that this user may not write. No file, no
// throw.
void check_replaceable(const std::string& path);
// The second half alone, of what `path` leads to.
void check_not_protected(const std::string& path);

}  // namespace kdelta
