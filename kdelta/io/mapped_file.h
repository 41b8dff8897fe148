// A whole file, read only, mapped into memory: pages come from the page cache on first touch, so loading copies
// nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace kdelta {

class MappedFile {
 public:
  MappedFile() = default;
  // Throws Error(bad_file) naming the path when it cannot be opened or is not a regular file. An empty file maps to no
  // bytes.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const uint8_t> bytes() const { return {data_, static_cast<size_t>(size_)}; }
  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const uint8_t* data_ = nullptr;
  int64_t size_ = 0;
};

// A small text file whole; throws Error(bad_file) when it is missing or larger than `limit`.
std::string read_text_file(const std::string& path, int64_t limit);

}  // namespace kdelta
