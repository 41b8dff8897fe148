// To bytes and files, and back from bytes that nobody vouches for.
#include "kdelta/api/state_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "kdelta/api/whole_file.h"
#include "kdelta/core/check.h"
#include "kdelta/io/checksum.h"
#include "kdelta/io/json_reader.h"
#include "kdelta/io/mapped_file.h"

namespace kdelta {

using runtime::RequestOptions;
using runtime::StateImage;
using runtime::StatePart;
using runtime::WindowLayout;

namespace {

constexpr char kMagic[] = "kdstate\n";
constexpr size_t kMagicBytes = 8, kFixedBytes = kMagicBytes + 4 + 4 + 8, kSumBytes = 8;
constexpr int64_t kMostText = int64_t{1} << 28;

Json ids(const std::vector<int32_t>& v) {
  return Json::Array(v.begin(), v.end());
}

// -infinity has no JSON form; it is a bias's "never".
Json bias_value(float b) {
  return std::isinf(b) ? Json(nullptr) : Json(static_cast<double>(b));
}

Json options_json(const RequestOptions& o) {
  Json::Array bias;
  for (const LogitBias& b : o.bias) bias.push_back(Json::Object{{"token", b.token}, {"bias", bias_value(b.bias)}});
  const SamplingParams& s = o.sampling;
  const auto real = [](float x) { return Json(static_cast<double>(x)); };
  return Json::Object{{"temperature", real(s.temperature)},
                      {"top_k", s.top_k},
                      {"top_p", real(s.top_p)},
                      {"min_p", real(s.min_p)},
                      {"repetition_penalty", real(s.repetition_penalty)},
                      {"presence_penalty", real(s.presence_penalty)},
                      {"frequency_penalty", real(s.frequency_penalty)},
                      {"seed", std::to_string(s.seed)},
                      {"max_tokens", o.max_tokens},
                      {"min_tokens", o.min_tokens},
                      {"stop_ids", ids(o.stop_ids)},
                      {"bias", std::move(bias)},
                      {"top_logprobs", o.top_logprobs}};
}

Json part_json(const StatePart& p) {
  Json::Array shape;
  for (int i = 0; i < p.spec.shape.rank; ++i) shape.push_back(p.spec.shape[i]);
  return Json::Object{{"layer", p.layer},
                      {"name", p.spec.name},
                      {"page", p.spec.kind == StateKind::page},
                      {"window", runtime::is_window(p.spec)},
                      {"channel_major", p.layout == WindowLayout::channel_major},
                      {"dtype", dtype_name(p.spec.dtype)},
                      {"shape", std::move(shape)},
                      {"shard_axis", p.spec.shard_axis},
                      {"shard_groups", p.spec.shard_groups}};
}

std::vector<int32_t> read_ids(const JsonReader& r, const char* field) {
  std::vector<int32_t> out;
  for (const int64_t id : r.get<std::vector<int64_t>>(field)) {
    if (id < 0 || id > INT32_MAX) r.refuse(field, "token ids");
    out.push_back(static_cast<int32_t>(id));
  }
  return out;
}

uint64_t read_u64(const JsonReader& r, const char* field) {
  const auto text = r.get<std::string>(field);
  uint64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size()) r.refuse(field, "digits of a 64-bit number");
  return value;
}

float read_fp32(const JsonReader& r, const char* field) {
  const auto value = r.get<double>(field);
  if (!(std::fabs(value) <= static_cast<double>(std::numeric_limits<float>::max())))
    r.refuse(field, "a number within fp32's range");
  return static_cast<float>(value);
}

RequestOptions read_options(const JsonReader& r) {
  RequestOptions o;
  const auto real = [&](const char* field) { return read_fp32(r, field); };
  o.sampling = {.temperature = real("temperature"),
                .top_k = static_cast<int32_t>(r.get_in("top_k", INT32_MIN, INT32_MAX)),
                .top_p = real("top_p"),
                .min_p = real("min_p"),
                .repetition_penalty = real("repetition_penalty"),
                .presence_penalty = real("presence_penalty"),
                .frequency_penalty = real("frequency_penalty"),
                .seed = read_u64(r, "seed")};
  o.max_tokens = r.get<int64_t>("max_tokens");
  o.min_tokens = r.get<int64_t>("min_tokens");
  o.stop_ids = read_ids(r, "stop_ids");
  for (const JsonReader& b : r.get<std::vector<JsonReader>>("bias"))
    o.bias.push_back({static_cast<int32_t>(b.get_in("token", 0, INT32_MAX)),
                      b.kind("bias") == Json::Kind::null ? -INFINITY : read_fp32(b, "bias")});
  o.top_logprobs = static_cast<int32_t>(r.get_in("top_logprobs", -1, INT32_MAX));
  return o;
}

StatePart read_part(const JsonReader& r) {
  StatePart p;
  p.layer = static_cast<int>(r.get_in("layer", 0, 1 << 20));
  p.spec.name = r.get<std::string>("name");
  p.spec.kind = r.get<bool>("page") ? StateKind::page : StateKind::slot;
  p.spec.rule = r.get<bool>("window") ? SlotRule::window : SlotRule::column;
  p.layout = r.get<bool>("channel_major") ? WindowLayout::channel_major : WindowLayout::token_major;
  if (!parse_dtype(r.get<std::string>("dtype"), &p.spec.dtype) || dtype_bits(p.spec.dtype) % 8 != 0)
    r.refuse("dtype", "a dtype of whole bytes");
  const auto shape = r.get<std::vector<int64_t>>("shape");
  if (shape.empty() || shape.size() > static_cast<size_t>(kMaxRank)) r.refuse("shape", str("1 to ", kMaxRank, " axes"));
  p.spec.shape.rank = static_cast<int>(shape.size());
  int64_t elements = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 0 || shape[i] > int64_t{1} << 31 || elements > (int64_t{1} << 50) / std::max<int64_t>(shape[i], 1))
      r.refuse("shape", "axes of 0 to 2^31 and at most 2^50 elements");
    elements *= std::max<int64_t>(shape[i], 1);
    p.spec.shape.dim[i] = shape[i];
  }
  p.spec.shard_axis = static_cast<int>(r.get_in("shard_axis", -1, p.spec.shape.rank - 1));
  p.spec.shard_groups = static_cast<int>(r.get_in("shard_groups", 1, 1 << 20));
  if (p.spec.shard_axis >= 0 && p.spec.shape[p.spec.shard_axis] % p.spec.shard_groups != 0)
    r.refuse("shard_groups", "a divisor of the axis that is sharded");
  const bool window = runtime::is_window(p.spec);
  if (window && p.spec.shape.rank != 2) r.refuse("shape", "two axes of a window, its rows and channels");
  if (!window && p.layout != WindowLayout::token_major) r.refuse("channel_major", "false of a part that is no window");
  return p;
}

template <class T>
T number_at(std::span<const char> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

// Writes behind what was written.
class Writer {
 public:
  explicit Writer(size_t bytes) : out_(bytes) {}
  void bytes(const void* data, size_t n) {
    if (n > 0) std::memcpy(out_.data() + at_, data, n);
    at_ += n;
  }
  template <class T>
  void number(T value) {
    bytes(&value, sizeof(T));
  }
  uint64_t sum() const { return checksum(std::span(out_).first(at_)); }
  std::vector<char> take() { return std::move(out_); }

 private:
  std::vector<char> out_;
  size_t at_ = 0;
};

}  // namespace

std::vector<char> encode_state(const StateImage& image) {
  Json::Array parts;
  uint64_t data = 0;
  for (const StatePart& p : image.parts) parts.push_back(part_json(p)), data += p.data.size();
  const std::string text = json_text(Json::Object{{"model", std::to_string(image.model)},
                                                  {"arithmetic", image.arithmetic},
                                                  {"shard", image.shard},
                                                  {"shards", image.shards},
                                                  {"grid", image.grid},
                                                  {"prompt", ids(image.prompt)},
                                                  {"output", ids(image.output)},
                                                  {"computed", image.computed},
                                                  {"options", options_json(image.options)},
                                                  {"parts", std::move(parts)}});
  Writer out(kFixedBytes + text.size() + data + kSumBytes);
  out.bytes(kMagic, kMagicBytes);
  out.number(kStateVersion);
  out.number(static_cast<uint32_t>(text.size()));
  out.number(data);
  out.bytes(text.data(), text.size());
  for (const StatePart& p : image.parts) out.bytes(p.data.data(), p.data.size());
  out.number(out.sum());
  return out.take();
}

StateImage decode_state(std::span<const char> bytes, const std::string& source) {
  const auto refuse = [&](const std::string& what) { fail(ErrorCode::bad_file, source, ": ", what); };
  if (bytes.size() < kFixedBytes + kSumBytes || std::memcmp(bytes.data(), kMagic, kMagicBytes) != 0)
    refuse("no state of a request: it does not begin like one");
  const auto version = number_at<uint32_t>(bytes, kMagicBytes);
  if (version != kStateVersion) refuse(str("version ", version, ", this program reads ", kStateVersion));
  const auto text = number_at<uint32_t>(bytes, kMagicBytes + 4);
  const auto data = number_at<uint64_t>(bytes, kMagicBytes + 8);
  const uint64_t rest = bytes.size() - kFixedBytes - kSumBytes;
  if (text > rest || data != rest - text)
    refuse(str("torn: ", bytes.size(), " bytes, its header speaks of ", text, " + ", data));
  const size_t end = bytes.size() - kSumBytes;
  if (number_at<uint64_t>(bytes, end) != checksum(bytes.first(end))) refuse("damaged: the checksum does not fit");
  const JsonReader r(parse_json({bytes.data() + kFixedBytes, text}, {.name = source},
                                {.max_bytes = kMostText, .max_values = kMostText / 16}),
                     {.name = source});
  StateImage image;
  image.model = read_u64(r, "model");
  image.arithmetic = r.get<std::string>("arithmetic");
  for (const char c : image.arithmetic)
    if (c >= 0 && (c < 0x20 || c == 0x7f)) r.refuse("arithmetic", "text without control characters");  // it is printed
  image.shards = static_cast<int>(r.get_in("shards", 1, 1 << 20));
  image.shard = static_cast<int>(r.get_in("shard", 0, image.shards - 1));
  image.grid = r.get_in("grid", 1, int64_t{1} << 30);
  image.prompt = read_ids(r, "prompt");
  image.output = read_ids(r, "output");
  image.computed = r.get_in("computed", 0, static_cast<int64_t>(image.prompt.size() + image.output.size()));
  image.options = read_options(r.get<JsonReader>("options"));
  const char* at = bytes.data() + kFixedBytes + text;
  uint64_t left = data;
  for (const JsonReader& p : r.get<std::vector<JsonReader>>("parts")) {
    image.parts.push_back(read_part(p));
    const auto size = static_cast<uint64_t>(image.parts.back().spec.bytes());
    if (size > left) refuse("its parts are larger than its data");
    image.parts.back().data.assign(at, at + size);
    at += size;
    left -= size;
  }
  if (left != 0) refuse("its parts are smaller than its data");
  return image;
}

void write_state(const std::string& path, const StateImage& image) {
  write_whole_file(path, encode_state(image));
}

StateImage read_state(const std::string& path) {
  const MappedFile file(path);
  return decode_state({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path);
}

}  // namespace kdelta
