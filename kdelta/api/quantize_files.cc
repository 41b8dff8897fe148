#include "kdelta/api/quantize_files.h"

#include <algorithm>
#include <filesystem>

#include "kdelta/io/checksum.h"
#include "kdelta/io/mapped_file.h"
#include "kdelta/io/new_directory.h"

namespace kdelta {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDoneName = "kdelta_quantize_done.json";

bool is_bookkeeping(const std::string& name) {
  return name == kQuantizeJobName || name == kDoneName;
}

// config.json and the index cannot be shards: they have been read as JSON.
void check_shard(const Checkpoint& checkpoint, const std::string& name) {
  if (is_bookkeeping(name) || name.ends_with(kUnfinishedText))
    fail(ErrorCode::bad_file, checkpoint.directory(), "/", printable(name),
         ": quantize writes a file of its own of this name, expected another name for a file of weights");
}

std::vector<std::string> companions_of(const std::string& directory, const std::vector<std::string>& shards) {
  constexpr const char* kOther[] = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack"};
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    const bool weights = std::ranges::any_of(kOther, [&](const char* end) { return name.ends_with(end); }) ||
                         std::ranges::find(shards, name) != shards.end();
    if (entry.is_regular_file() && !weights && name != "config.json" && name != kIndexName && !is_bookkeeping(name))
      out.push_back(name);
  }
  return out;
}

}  // namespace

ResultFiles result_files(const Checkpoint& checkpoint) {
  ResultFiles out;
  for (int f = 0; f < checkpoint.file_count(); ++f) {
    out.shards.push_back(fs::path(checkpoint.file_path(f)).filename());
    check_shard(checkpoint, out.shards.back());
  }
  out.companions = companions_of(checkpoint.directory(), out.shards);
  out.index = out.shards.size() > 1 || fs::exists(fs::path(checkpoint.directory()) / kIndexName);
  return out;
}

void check_unfinished(const std::string& partial, const ResultFiles& files) {
  std::vector<std::string> known = {"config.json", kQuantizeJobName, kDoneName};
  if (files.index) known.push_back(kIndexName);
  known.insert(known.end(), files.shards.begin(), files.shards.end());
  known.insert(known.end(), files.companions.begin(), files.companions.end());
  std::ranges::sort(known);
  std::vector<std::string> unknown;
  for (const auto& entry : fs::directory_iterator(partial)) {
    const std::string name = entry.path().filename();
    const bool ours = fs::is_regular_file(entry.symlink_status()) &&
                      (std::ranges::binary_search(known, name) || is_unfinished_file(name));
    if (!ours) unknown.push_back(name);
  }
  if (!unknown.empty())
    fail(ErrorCode::invalid_argument, "out: ", partial, "/", printable(*std::ranges::min_element(unknown)),
         " is not of this run; remove it or give another name");
}

std::string job_text(const Checkpoint& checkpoint, const ResultFiles& files, const QuantizeOptions& o) {
  Json::Array sources;
  for (size_t f = 0; f < files.shards.size(); ++f) {
    const fs::path path = checkpoint.file_path(static_cast<int>(f));
    sources.push_back(Json::Object{{"file", files.shards[f]},
                                   {"bytes", static_cast<int64_t>(fs::file_size(path))},
                                   {"modified", fs::last_write_time(path).time_since_epoch().count()}});
  }
  return json_text(Json::Object{{"qkv", o.qkv},
                                {"experts", o.experts},
                                {"weight_rule", o.weight_rule},
                                {"activation_rule", o.activation_rule},
                                {"source", fs::canonical(checkpoint.directory()).string()},
                                {"source_files", std::move(sources)}},
                   {.indent = 2}) +
         "\n";
}

FinishedFiles::FinishedFiles(std::string directory) : directory_(std::move(directory)) {
  if (!fs::exists(list())) return;
  try {
    const Json files = parse_json_file(list());
    for (const JsonMember& m : files.object()) sums_.set(m.key, m.value.string());
  } catch (const Error&) {
    sums_ = Json::Object{};
  }
}

bool FinishedFiles::exists(const std::string& name) const {
  return fs::exists(fs::path(directory_) / name);
}

void FinishedFiles::add(const std::string& name) {
  sums_.set(name, sum_of(name));
  write_text_file(list(), json_text(sums_, {.indent = 2}) + "\n");
}

void FinishedFiles::forget() const {
  fs::remove(list());
}

std::string FinishedFiles::list() const {
  return directory_ + "/" + kDoneName;
}

std::string FinishedFiles::sum_of(const std::string& name) const {
  const MappedFile file(directory_ + "/" + name);
  const auto bytes = file.bytes();
  return std::to_string(checksum({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
}

}  // namespace kdelta
