#include "kdelta/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "kdelta/core/error.h"

namespace kdelta {
namespace {

// Closes the descriptor on every path out.
struct Descriptor {
  explicit Descriptor(int value) : fd(value) {}
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // Without O_NONBLOCK a FIFO would wait for its writer, here, for ever.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd < 0) fail(ErrorCode::bad_file, path, ": cannot open: ", std::strerror(errno));
  struct stat info {};
  if (fstat(file.fd, &info) != 0) fail(ErrorCode::bad_file, path, ": cannot stat: ", std::strerror(errno));
  if (!S_ISREG(info.st_mode)) fail(ErrorCode::bad_file, path, ": not a regular file");
  size_ = info.st_size;
  if (size_ == 0) return;
  void* data = mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) fail(ErrorCode::bad_file, path, ": cannot map ", size_, " bytes: ", std::strerror(errno));
  data_ = static_cast<const uint8_t*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(size_));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::string read_text_file(const std::string& path, int64_t limit) {
  const MappedFile file(path);
  if (file.size() > limit) fail(ErrorCode::bad_file, path, ": ", file.size(), " bytes, at most ", limit, " expected");
  return std::string(file.bytes().begin(), file.bytes().end());
}

}  // namespace kdelta
