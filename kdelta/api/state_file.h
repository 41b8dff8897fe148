// A request's state as bytes and as a file: "kdstate\n", u32 version, u32 length of the JSON that follows, u64 length
// of the data behind it, JSON, data (the parts in the JSON's order), u64 checksum (kdelta/io/checksum.h) of all before
// it. Little-endian.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kdelta/runtime/state_image.h"

namespace kdelta {

inline constexpr uint32_t kStateVersion = 3;

std::vector<char> encode_state(const runtime::StateImage& image);
// Throws Error(bad_file) naming `source` and what is wrong: foreign, torn, another version, a changed byte.
runtime::StateImage decode_state(std::span<const char> bytes, const std::string& source);

// To a file, whole or not at all (write_whole_file).
void write_state(const std::string& path, const runtime::StateImage& image);
runtime::StateImage read_state(const std::string& path);

}  // namespace kdelta
