// model.safetensors.index.json: which shard holds which tensor. {"metadata": {"total_size": n}, "weight_map": {tensor:
// shard}}.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kdelta {

struct CheckpointIndex {
  struct Entry {
    std::string tensor;
    int shard = 0;  // index into shards
  };
  std::vector<std::string> shards;    // ordered by name
  std::vector<Entry> entries;         // ordered by tensor
  std::optional<int64_t> total_size;  // as the file claims it
};

// `path` is the file's name in messages. Throws Error(bad_file): malformed JSON, no weight_map or an empty one, a
// tensor twice, a shard name that is not the plain name of a file in the same folder (so an index cannot reach other
// files of the machine).
CheckpointIndex parse_checkpoint_index(std::string_view text, const std::string& path);
// Reads and parses the file.
CheckpointIndex read_checkpoint_index(const std::string& path);
// The text of such a file: entries in their order, shards by name.
std::string checkpoint_index_text(const CheckpointIndex& index);

}  // namespace kdelta
