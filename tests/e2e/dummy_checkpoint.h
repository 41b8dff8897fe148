// A checkpoint of any size on disk: the tensors that a config.json asks for, with values that cost little to make.
#pragma once

#include <cstdint>
#include <string>

namespace kdelta::test {

struct DummyCheckpoint {
  int64_t bytes = 0, largest_shard = 0;  // of tensors; of files
  int shards = 0;
};

// Writes shards of at most `shard_bytes` (a larger tensor has one for itself) and their index beside
// DIRECTORY/config.json: bf16 matrices, experts in MXFP4 when `mx_experts`, vectors in fp32.
DummyCheckpoint write_dummy_checkpoint(const std::string& directory, int64_t shard_bytes, bool mx_experts);

}  // namespace kdelta::test
