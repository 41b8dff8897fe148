// A checkpoint directory: safetensors files, sharded with model.safetensors.index.json or a single file, mapped and
// validated as a whole before anything is used. Format: 8-byte little-endian header length, JSON header {name: {dtype,
// shape, data_offsets}}, data. Every byte of the data part must belong to exactly one tensor.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kdelta/core/dtype.h"

namespace kdelta {

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  int64_t begin = 0, bytes = 0;  // offset from the start of its file
  int file = 0;                  // 0 .. file_count()-1
};

class Checkpoint {
 public:
  // Opens and validates `directory`. Throws Error(bad_file) naming the file, the tensor and the reason: truncated,
  // overlapping or gapped data, wrong or unknown dtype, a shape whose size differs from its span, overflow, duplicate
  // names within and across shards, a missing shard, a tensor that the index names but the shard lacks and the reverse,
  // header over 100 MB, deep or malformed JSON. Files of the directory that the index does not name are ignored and
  // listed in notes().
  static Checkpoint open(const std::string& directory);

  const std::string& directory() const;
  // All tensors, ordered by name.
  std::span<const TensorInfo> tensors() const;
  // nullptr when there is none of that name.
  const TensorInfo* find(std::string_view name) const;
  // The tensor's bytes inside the map; not necessarily aligned to its element.
  const uint8_t* data(const TensorInfo& tensor) const;
  const std::string& file_path(int file) const;
  int file_count() const;
  int64_t total_bytes() const;
  // Things worth a line at start-up, never errors.
  std::span<const std::string> notes() const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// Writes one safetensors file (for dumps and tests): tensors in the given order, header padded with spaces so that data
// starts 8-byte aligned. The file appears under `path` only when complete (written beside it, then renamed).
struct TensorToWrite {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  const void* data;
};
void write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                       std::span<const std::pair<std::string, std::string>> metadata = {});

}  // namespace kdelta
