// Files that have their name only when they are whole.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace kdelta {

// Writes beside `path`, then renames: an older file stays as it was until the new one is whole, and after a failure
// nothing is left behind. Readable by its owner alone. Throws Error(failed) with the system's reason (a full disk, no
// such folder), Error(invalid_argument) when `path` is no regular file or write-protected.
void write_whole_file(const std::string& path, std::span<const char> content);
// Throws Error(bad_file) with the system's reason.
std::vector<char> read_whole_file(const std::string& path);

}  // namespace kdelta
