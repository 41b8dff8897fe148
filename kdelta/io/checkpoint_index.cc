#include "kdelta/io/checkpoint_index.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "kdelta/io/json.h"
#include "kdelta/io/json_events.h"
#include "kdelta/io/mapped_file.h"

namespace kdelta {
namespace {

// Kimi K3's index, the largest released, has 497,220 entries in about 60 MB: room for four times its bytes and eight
// times its entries.
constexpr JsonLimits kIndexLimits{.max_bytes = 256'000'000, .max_values = 4'000'000};

class IndexEvents final : public JsonEvents {
 public:
  explicit IndexEvents(const std::string& path) : path_(path) {}

  // The index, ordered.
  CheckpointIndex take();

  void key(std::string&& name) override {
    if (in_weight_map()) {
      index_.entries.push_back({std::move(name), 0});
      return;
    }
    if (!keys_.back().insert(name).second) refuse(printable(name), ": the key appears twice");
    if (depth_ == 1)
      section_ = std::move(name);
    else
      field_ = std::move(name);
  }

  void scalar(Json&& value) override {
    if (in_weight_map()) return set_shard(value);
    if (depth_ == 0) refuse(describe(value), ", expected an object");
    if (depth_ == 1 && section_ == kWeightMap) refuse(kWeightMap, ": ", describe(value), ", expected an object");
    if (depth_ == 2 && section_ == "metadata" && field_ == "total_size" && value.kind() == Json::Kind::integer)
      index_.total_size = value.integer();
  }

  void begin_object() override {
    if (in_weight_map()) refuse_entry("an object");
    if (depth_ == 1 && section_ == kWeightMap) weight_map_seen_ = true;
    enter();
  }

  void begin_array() override {
    if (in_weight_map()) refuse_entry("an array");
    if (depth_ == 0) refuse("an array, expected an object");
    if (depth_ == 1 && section_ == kWeightMap) refuse(kWeightMap, ": an array, expected an object");
    enter();
  }

  void end_object() override { leave(); }
  void end_array() override { leave(); }

 private:
  static constexpr const char* kWeightMap = "weight_map";

  bool in_weight_map() const { return depth_ == 2 && section_ == kWeightMap; }
  void enter() {
    ++depth_;
    keys_.emplace_back();
  }
  void leave() {
    --depth_;
    keys_.pop_back();
  }

  void set_shard(const Json& value) {
    if (value.kind() != Json::Kind::string) refuse_entry(describe(value));
    const std::string& name = value.string();
    const bool plain =
        !name.empty() && name != "." && name != ".." && name.find('/') == name.npos && name.find('\0') == name.npos;
    if (!plain) refuse_entry(describe(value));
    index_.entries.back().shard = shard_ids_.try_emplace(name, static_cast<int>(shard_ids_.size())).first->second;
  }

  [[noreturn]] void refuse_entry(const std::string& found) const {
    refuse(kWeightMap, ".", printable(index_.entries.back().tensor), ": ", found,
           ", expected the plain name of a file in the same folder");
  }
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(ErrorCode::bad_file, path_, ": ", parts...);
  }

  const std::string& path_;
  CheckpointIndex index_;
  std::map<std::string, int, std::less<>> shard_ids_;  // in order of appearance
  bool weight_map_seen_ = false;
  int depth_ = 0;
  std::string section_, field_;  // the last keys at depths 1 and 2
  std::vector<std::set<std::string>>
      keys_;  // of each open object but weight_map, whose keys are compared after sorting
};

CheckpointIndex IndexEvents::take() {
  if (!weight_map_seen_) refuse(kWeightMap, ": missing");
  if (index_.entries.empty()) refuse(kWeightMap, ": names no tensor");
  std::vector<int> rank(shard_ids_.size());  // id -> place by name
  for (const auto& [name, id] : shard_ids_) {
    rank[static_cast<size_t>(id)] = static_cast<int>(index_.shards.size());
    index_.shards.push_back(name);
  }
  for (auto& entry : index_.entries) entry.shard = rank[static_cast<size_t>(entry.shard)];
  std::ranges::sort(index_.entries, {}, &CheckpointIndex::Entry::tensor);
  const auto twice = std::ranges::adjacent_find(index_.entries, {}, &CheckpointIndex::Entry::tensor);
  if (twice != index_.entries.end()) refuse(kWeightMap, ".", printable(twice->tensor), ": the tensor appears twice");
  return std::move(index_);
}

}  // namespace

CheckpointIndex parse_checkpoint_index(std::string_view text, const std::string& path) {
  IndexEvents events(path);
  parse_json_events(text, {path}, kIndexLimits, events);
  return events.take();
}

CheckpointIndex read_checkpoint_index(const std::string& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return parse_checkpoint_index({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

std::string checkpoint_index_text(const CheckpointIndex& index) {
  std::string out = "{\n  \"metadata\": {";
  if (index.total_size) out += "\n    \"total_size\": " + std::to_string(*index.total_size) + "\n  ";
  out += "},\n  \"weight_map\": {";
  for (size_t i = 0; i < index.entries.size(); ++i) {
    out += i == 0 ? "\n    " : ",\n    ";
    append_json_string(out, index.entries[i].tensor);
    out += ": ";
    append_json_string(out, index.shards[static_cast<size_t>(index.entries[i].shard)]);
  }
  return out + "\n  }\n}\n";
}

}  // namespace kdelta
