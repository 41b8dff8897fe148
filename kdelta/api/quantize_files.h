// The files of a quantisation: those of the result, those that a run keeps about itself in OUT.partial until the result
// is complete, and what an earlier run left there.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kdelta/api/quantize_plan.h"

namespace kdelta {

inline constexpr const char* kQuantizeJobName = "kdelta_quantize.json";
inline constexpr const char* kIndexName = "model.safetensors.index.json";

struct ResultFiles {
  std::vector<std::string> shards;      // by file of the source
  std::vector<std::string> companions;  // tokenizer, chat template, generation settings: plain files without weights
  bool index = false;
};
// Throws Error(bad_file) naming the shard whose name a run needs for a file of its own.
ResultFiles result_files(const Checkpoint& checkpoint);

// Throws Error(invalid_argument) naming the first file of an unfinished folder, by name, that no run of these files
// makes: the whole folder becomes the result. Leaves of stopped writers are none of them; NewDirectory removes those.
void check_unfinished(const std::string& partial, const ResultFiles& files);

// What makes two runs the same job: settings and the source's files.
std::string job_text(const Checkpoint& checkpoint, const ResultFiles& files, const QuantizeOptions& options);

// The checksums of the files that are finished, in a file of their own beside them.
class FinishedFiles {
 public:
  // Whatever it cannot read it takes for nothing: the files are then made again.
  explicit FinishedFiles(std::string directory);
  bool exists(const std::string& name) const;
  // True when a run said that it finished the file. Reads no data.
  bool lists(const std::string& name) const { return sums_.find(name) != nullptr && exists(name); }
  // True when the file has the bytes that it was finished with.
  bool holds(const std::string& name) const { return lists(name) && sums_.find(name)->string() == sum_of(name); }
  void add(const std::string& name);
  void forget() const;

 private:
  std::string list() const;
  std::string sum_of(const std::string& name) const;

  std::string directory_;
  Json sums_ = Json::Object{};
};

}  // namespace kdelta
