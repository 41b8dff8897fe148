#include "kdelta/io/safetensors.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "kdelta/core/check.h"
#include "kdelta/io/json_events.h"

namespace kdelta {
namespace {

constexpr int64_t kLengthBytes = 8;
// The rank that numpy stops at; without a bound a header could ask for a shape of 50 million ones.
constexpr size_t kMaxTensorRank = 32;
// Three levels exist; the handler refuses the fourth with a better message.
constexpr JsonLimits kHeaderLimits{.max_bytes = kMaxHeaderBytes, .max_values = kMaxHeaderBytes, .max_depth = 8};

// The JSON text between the length and the data.
std::string_view header_text(std::span<const uint8_t> file, const std::string& path) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.starts_with("version https://git-lfs"))
    fail(ErrorCode::bad_file, path, ": a Git LFS pointer, not the weights themselves; fetch them with git lfs pull");
  if (file.size() < kLengthBytes)
    fail(ErrorCode::bad_file, path, ": ", file.size(), " bytes, expected at least the ", kLengthBytes,
         " of the header length");
  uint64_t length = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) length = length << 8 | file[static_cast<size_t>(i)];
  if (length > kMaxHeaderBytes)
    fail(ErrorCode::bad_file, path, ": header of ", length, " bytes claimed, expected at most ", kMaxHeaderBytes,
         ": not a safetensors file");
  if (length > file.size() - kLengthBytes)
    fail(ErrorCode::bad_file, path, ": header of ", length, " bytes claimed, but only ", file.size() - kLengthBytes,
         " follow: the file is truncated");
  const std::string_view header = text.substr(kLengthBytes, length);
  if (!header.starts_with('{'))
    fail(ErrorCode::bad_file, path, ": the header does not start with '{': not a safetensors file");
  return header;
}

// Builds the tensor list from the header's events and checks each entry by itself.
class HeaderEvents final : public JsonEvents {
 public:
  HeaderEvents(const std::string& path, int64_t data_begin, int64_t data_bytes)
      : path_(path), data_begin_(data_begin), data_bytes_(data_bytes) {}
  std::vector<TensorInfo> take() { return std::move(tensors_); }

  void key(std::string&& name) override {
    if (in_ == In::header)
      begin_entry(std::move(name));
    else if (in_ == In::tensor)
      begin_field(name);
    else if (!metadata_keys_.insert(name).second)
      refuse(printable(name), " appears twice");
  }

  void scalar(Json&& value) override {
    if (in_ == In::tensor && field_ == kDType && value.kind() == Json::Kind::string) return set_dtype(value.string());
    if (in_ == In::shape) return add(shape_, kMaxTensorRank, value);
    if (in_ == In::offsets) return add(offsets_, 2, value);
    if (in_ == In::metadata && value.kind() == Json::Kind::string) return;
    unexpected(describe(value));
  }

  void begin_object() override {
    if (in_ == In::nothing)
      in_ = In::header;
    else if (in_ == In::header)
      in_ = is_metadata_ ? In::metadata : In::tensor;
    else
      unexpected("an object");
  }

  void end_object() override {
    if (in_ == In::tensor) finish_tensor();
    in_ = in_ == In::header ? In::nothing : In::header;
  }

  void begin_array() override {
    if (in_ == In::tensor && field_ == kShape)
      in_ = In::shape;
    else if (in_ == In::tensor && field_ == kOffsets)
      in_ = In::offsets;
    else
      unexpected("an array");
  }

  void end_array() override { in_ = In::tensor; }

 private:
  enum class In : uint8_t { nothing, header, metadata, tensor, shape, offsets };
  enum Field : uint8_t { kDType, kShape, kOffsets, kFieldCount };
  static constexpr const char* kFieldName[kFieldCount] = {"dtype", "shape", "data_offsets"};

  void begin_entry(std::string&& name) {
    is_metadata_ = name == "__metadata__";
    name_ = std::move(name);
    if (name_.empty()) refuse("the name is empty");
    if (is_metadata_ && std::exchange(metadata_seen_, true)) refuse("appears twice");
    dtype_.reset();
    shape_.clear();
    offsets_.clear();
    seen_ = {};
  }

  void begin_field(const std::string& field) {
    const auto known = std::ranges::find(kFieldName, field);
    if (known == std::end(kFieldName))
      refuse("field ", printable(field), " is unknown, expected dtype, shape and data_offsets");
    field_ = static_cast<Field>(known - std::begin(kFieldName));
    if (std::exchange(seen_[field_], true)) refuse(field, " appears twice");
  }

  void set_dtype(const std::string& name) {
    DType dtype;
    if (!parse_dtype(name, &dtype)) refuse("dtype \"", printable(name), "\" is unknown");
    dtype_ = dtype;
  }

  void add(std::vector<int64_t>& numbers, size_t limit, const Json& value) {
    if (value.kind() != Json::Kind::integer)
      refuse(kFieldName[field_], ": ", describe(value), ", expected an integer of 64 bits");
    if (value.integer() < 0) refuse(kFieldName[field_], ": ", value.integer(), ", expected 0 or more");
    if (numbers.size() == limit) refuse(kFieldName[field_], ": more than ", limit, " numbers");
    numbers.push_back(value.integer());
  }

  void finish_tensor() {
    for (int i = 0; i < kFieldCount; ++i)
      if (!seen_[static_cast<size_t>(i)]) refuse(kFieldName[i], " is missing");
    if (offsets_.size() != 2) refuse("data_offsets: ", offsets_.size(), " numbers, expected begin and end");
    const int64_t begin = offsets_[0], end = offsets_[1];
    const auto span = [&] { return str("data_offsets [", begin, ", ", end, "]"); };
    const auto type = [&] { return str(dtype_name(*dtype_), " ", shape_text(shape_)); };
    if (end < begin) refuse(span(), ": the end is before the begin");
    if (end > data_bytes_) refuse(span(), ", but the file holds ", data_bytes_, " bytes of data: truncated");
    int64_t bytes = 0;
    if (!tensor_bytes(*dtype_, shape_, &bytes))
      refuse(type(), " has no size: more than 64 bits or no whole number of bytes");
    if (end - begin != bytes) refuse(span(), " are ", end - begin, " bytes, but ", type(), " takes ", bytes);
    tensors_.push_back({std::move(name_), *dtype_, shape_, data_begin_ + begin, bytes, 0});
  }

  [[noreturn]] void unexpected(const std::string& found) const {
    switch (in_) {
      case In::nothing:
        break;  // the text starts with '{' and ends with its '}'
      case In::header:
        refuse(found, ", expected an object");
      case In::metadata:
        refuse(found, ", expected strings only");
      case In::tensor:
        refuse(kFieldName[field_], ": ", found, ", expected ", field_ == kDType ? "a string" : "an array of integers");
      case In::shape:
      case In::offsets:
        refuse(kFieldName[field_], ": ", found, ", expected an integer of 64 bits");
    }
    KDELTA_UNREACHABLE("header state", in_);
  }

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(ErrorCode::bad_file, path_, is_metadata_ ? ": header: " : ": tensor ", printable(name_), ": ", parts...);
  }

  const std::string& path_;
  int64_t data_begin_, data_bytes_;
  std::vector<TensorInfo> tensors_;
  std::set<std::string> metadata_keys_;
  bool metadata_seen_ = false;

  In in_ = In::nothing;
  // The entry being read.
  std::string name_;
  bool is_metadata_ = false;
  Field field_ = kDType;
  std::array<bool, kFieldCount> seen_{};
  std::optional<DType> dtype_;
  std::vector<int64_t> shape_, offsets_;
};

void check_names(const std::vector<TensorInfo>& tensors, const std::string& path) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorInfo& t : tensors) names.push_back(t.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end())
    fail(ErrorCode::bad_file, path, ": tensor ", printable(*twice), ": appears twice in the header");
}

// Tensors, sorted by begin, must tile [data_begin, file_bytes).
void check_tiling(const std::vector<TensorInfo>& tensors, int64_t data_begin, int64_t file_bytes,
                  const std::string& path) {
  int64_t covered = data_begin;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& t : tensors) {
    const int64_t begin = t.begin - data_begin, end = begin + t.bytes, expected = covered - data_begin;
    if (t.begin < covered)
      fail(ErrorCode::bad_file, path, ": tensor ", printable(t.name), ": data_offsets [", begin, ", ", end,
           "] overlap tensor ", printable(previous->name), ", which ends at ", expected);
    if (t.begin > covered)
      fail(ErrorCode::bad_file, path, ": tensor ", printable(t.name), ": data_offsets [", begin, ", ", end,
           "], expected to begin at ", expected, ": the bytes between belong to no tensor");
    covered += t.bytes;
    previous = &t;
  }
  if (covered != file_bytes)
    fail(ErrorCode::bad_file, path, ": ", file_bytes, " bytes, expected ", covered,
         ": what follows the last tensor belongs to none");
}

}  // namespace

bool tensor_bytes(DType dtype, std::span<const int64_t> shape, int64_t* bytes) {
  int64_t bits = dtype_bits(dtype);
  bool empty = false;
  for (const int64_t n : shape) {
    empty = empty || n == 0;
    if (n != 0 && __builtin_mul_overflow(bits, n, &bits)) return false;
  }
  *bytes = empty ? 0 : bits / 8;
  return empty || bits % 8 == 0;
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += str(i > 0 ? ", " : "", shape[i]);
  return out + "]";
}

std::vector<TensorInfo> parse_safetensors(std::span<const uint8_t> file, const std::string& path) {
  const std::string_view header = header_text(file, path);
  const int64_t data_begin = kLengthBytes + std::ssize(header);
  HeaderEvents events(path, data_begin, std::ssize(file) - data_begin);
  parse_json_events(header, {path + ": header"}, kHeaderLimits, events);
  std::vector<TensorInfo> tensors = events.take();
  check_names(tensors, path);
  std::ranges::sort(tensors, {}, [](const TensorInfo& t) { return std::pair(t.begin, t.bytes); });  // empty ones first
  check_tiling(tensors, data_begin, std::ssize(file), path);
  return tensors;
}

}  // namespace kdelta
