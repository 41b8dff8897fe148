#include "kdelta/api/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "kdelta/core/check.h"
#include "kdelta/io/mapped_file.h"
#include "kdelta/io/replaceable.h"

namespace kdelta {
namespace {

// A file that has its name only when it is whole.
class NewFile {
 public:
  explicit NewFile(const std::string& path) : path_(path) {
    check_replaceable(path);
    static std::atomic<int> counter{0};
    partial_ = str(path, ".partial-", getpid(), "-", ++counter);
    fd_ = open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);  // a conversation is private
    if (fd_ < 0) refuse("cannot create");
  }
  ~NewFile() {
    if (fd_ >= 0) close(fd_);
    if (!committed_) unlink(partial_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const char* p, size_t bytes) {
    while (bytes > 0) {
      const ssize_t n = ::write(fd_, p, bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) refuse("cannot write");
      p += n;
      bytes -= static_cast<size_t>(n);
    }
  }
  void commit() {
    if (fsync(fd_) != 0) refuse("cannot write");
    if (rename(partial_.c_str(), path_.c_str()) != 0) refuse("cannot rename to the final name");
    committed_ = true;
  }

 private:
  [[noreturn]] void refuse(const char* what) const {
    fail(ErrorCode::failed, path_, ": ", what, ": ", std::strerror(errno));
  }
  std::string path_, partial_;
  int fd_ = -1;
  bool committed_ = false;
};

}  // namespace

void write_whole_file(const std::string& path, std::span<const char> content) {
  NewFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

std::vector<char> read_whole_file(const std::string& path) {
  const MappedFile file(path);
  const auto* data = reinterpret_cast<const char*>(file.bytes().data());
  return {data, data + file.bytes().size()};
}

}  // namespace kdelta
