#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <set>

#include "kdelta/core/check.h"
#include "kdelta/io/json.h"
#include "kdelta/io/replaceable.h"
#include "kdelta/io/safetensors.h"

namespace kdelta {
namespace {

constexpr int64_t kAlign = 8;  // of the first data byte, as the format's own writer does

// A file that exists under its final name only after commit(); an abandoned one is removed.
class NewFile {
 public:
  explicit NewFile(const std::string& path) : path_(path) {
    if (path.empty()) fail(ErrorCode::invalid_argument, "output file: empty name");
    check_replaceable(path);
    static std::atomic<int> counter{0};  // two threads may write the same path
    partial_ = str(path, ".partial-", getpid(), "-", ++counter);
    fd_ = open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) refuse("cannot create");
  }
  ~NewFile() {
    if (fd_ >= 0) close(fd_);
    if (!committed_) unlink(partial_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(int64_t begin, const void* data, int64_t bytes) {
    const char* p = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t n = pwrite(fd_, p, static_cast<size_t>(bytes), begin);  // takes at most 2 GiB at a time
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) refuse("cannot write");
      p += n;
      begin += n;
      bytes -= n;
    }
  }

  // The data reach the disk before the name does, or a power cut could leave a named file of zeros.
  void commit() {
    if (fsync(fd_) != 0) refuse("cannot write");
    if (rename(partial_.c_str(), path_.c_str()) != 0) refuse("cannot rename to the final name");
    committed_ = true;
  }

 private:
  [[noreturn]] void refuse(const char* what) const {
    const std::string reason = std::strerror(errno);
    fail(ErrorCode::failed, path_, ": ", what, ": ", reason);
  }

  std::string path_, partial_;
  int fd_ = -1;
  bool committed_ = false;
};

int64_t checked_bytes(const TensorToWrite& t, const std::string& path) {
  int64_t bytes = 0;
  for (const int64_t n : t.shape)
    if (n < 0) fail(ErrorCode::invalid_argument, path, ": tensor ", printable(t.name), ": shape ", shape_text(t.shape));
  if (!tensor_bytes(t.dtype, t.shape, &bytes))
    fail(ErrorCode::invalid_argument, path, ": tensor ", printable(t.name), ": ", dtype_name(t.dtype), " ",
         shape_text(t.shape), " has no size: more than 64 bits or no whole number of bytes");
  return bytes;
}

std::string metadata_text(std::span<const std::pair<std::string, std::string>> metadata) {
  Json::Object out;
  for (const auto& [key, value] : metadata) out.push_back({key, value});
  return "\"__metadata__\":" + json_text(Json(std::move(out)));
}

std::string entry_text(const TensorToWrite& t, int64_t begin, int64_t end) {
  std::string out;
  append_json_string(out, t.name);
  Json::Array shape(t.shape.begin(), t.shape.end());
  const Json entry = Json::Object{
      {"dtype", dtype_name(t.dtype)}, {"shape", std::move(shape)}, {"data_offsets", Json::Array{begin, end}}};
  return out + ":" + json_text(entry);
}

// Where every tensor begins and ends, counted from the first data byte, and the header that says so.
struct Layout {
  std::string header;
  std::vector<int64_t> begin;  // one more than tensors
};

Layout lay_out(const std::string& path, std::span<const TensorToWrite> tensors,
               std::span<const std::pair<std::string, std::string>> metadata) {
  Layout out{.header = "{", .begin = {0}};
  std::set<std::string_view> names;
  if (!metadata.empty()) out.header += metadata_text(metadata);
  for (const TensorToWrite& t : tensors) {
    if (t.name.empty() || t.name == "__metadata__" || !names.insert(t.name).second)
      fail(ErrorCode::invalid_argument, path, ": tensor name \"", printable(t.name),
           "\" is empty, reserved or used twice");
    int64_t end = out.begin.back();
    if (__builtin_add_overflow(end, checked_bytes(t, path), &end))
      fail(ErrorCode::invalid_argument, path, ": the tensors take more than 64 bits of bytes");
    if (out.header.size() > 1) out.header += ',';
    out.header += entry_text(t, out.begin.back(), end);
    out.begin.push_back(end);
  }
  out.header += '}';
  while (out.header.size() % kAlign != 0) out.header += ' ';
  if (std::ssize(out.header) > kMaxHeaderBytes)
    fail(ErrorCode::invalid_argument, path, ": header of ", out.header.size(), " bytes, the format allows ",
         kMaxHeaderBytes);
  return out;
}

}  // namespace

struct SafetensorsWriter::Impl {
  Impl(const std::string& path, Layout layout_of)
      : layout(std::move(layout_of)), data_begin(8 + std::ssize(layout.header)), file(path) {}
  Layout layout;
  int64_t data_begin, written = 0;
  NewFile file;
};

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::span<const TensorToWrite> tensors,
                                     std::span<const std::pair<std::string, std::string>> metadata)
    : impl_(std::make_unique<Impl>(path, lay_out(path, tensors, metadata))) {
  const std::string& header = impl_->layout.header;
  std::array<uint8_t, 8> length;
  for (size_t i = 0; i < length.size(); ++i) length[i] = static_cast<uint8_t>(header.size() >> (8 * i));
  impl_->file.write(0, length.data(), std::ssize(length));
  impl_->file.write(8, header.data(), std::ssize(header));
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(size_t tensor, int64_t begin, const void* data, int64_t bytes) {
  const Layout& l = impl_->layout;
  KDELTA_CHECK(
      tensor + 1 < l.begin.size() && begin >= 0 && bytes >= 0 && begin + bytes <= l.begin[tensor + 1] - l.begin[tensor],
      "bytes ", begin, " to ", begin + bytes, " of tensor ", tensor, " are outside it");
  impl_->file.write(impl_->data_begin + l.begin[tensor] + begin, data, bytes);
  impl_->written += bytes;
}

void SafetensorsWriter::commit() {
  KDELTA_CHECK(impl_->written == impl_->layout.begin.back(), impl_->written, " bytes written of ",
               impl_->layout.begin.back());
  impl_->file.commit();
}

void write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                       std::span<const std::pair<std::string, std::string>> metadata) {
  for (const TensorToWrite& t : tensors)
    if (t.data == nullptr && checked_bytes(t, path) > 0)
      fail(ErrorCode::invalid_argument, path, ": tensor ", printable(t.name), ": null data");
  SafetensorsWriter writer(path, tensors, metadata);
  for (size_t i = 0; i < tensors.size(); ++i) writer.write(i, 0, tensors[i].data, checked_bytes(tensors[i], path));
  writer.commit();
}

}  // namespace kdelta
