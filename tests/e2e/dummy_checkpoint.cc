#include "tests/e2e/dummy_checkpoint.h"

#include <algorithm>

#include "kdelta/io/checkpoint_index.h"
#include "kdelta/io/new_directory.h"
#include "kdelta/io/safetensors.h"
#include "kdelta/model/model.h"

namespace kdelta::test {
namespace {

// Every tensor takes its bytes from this, so that a file of gigabytes costs what the disk costs. Two bytes are a bf16
// and four an fp32 of magnitude 2^-7 to 2^-3; no byte is the scale code of NaN.
const std::vector<uint8_t>& pattern() {
  static const std::vector<uint8_t> bytes = [] {
    std::vector<uint8_t> b(size_t{4} << 20);
    uint64_t s = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < b.size(); i += 2) {
      s ^= s << 13, s ^= s >> 7, s ^= s << 17;
      b[i] = static_cast<uint8_t>(s & 0x7f);
      b[i + 1] = static_cast<uint8_t>(0x3c | (s >> 8 & 0x81));
    }
    return b;
  }();
  return bytes;
}

std::vector<TensorToWrite> tensors_of(const PlacedSpec& p, bool mx_experts) {
  const WeightSpec& s = p.spec;
  const std::string name = p.prefix + s.names[0] + s.suffix;
  if (s.kind == WeightKind::matrix) {
    if (!mx_experts || name.find(".experts.") == std::string::npos)
      return {{name, DType::bf16, {s.shape[0], s.shape[1]}, nullptr}};
    return {{name + "_packed", DType::u8, {s.shape[0], s.shape[1] / 2}, nullptr},
            {name + "_scale", DType::u8, {s.shape[0], s.shape[1] / kMxBlock}, nullptr}};
  }
  std::vector<TensorToWrite> all;
  const auto parts = static_cast<int64_t>(s.names.size());
  for (const std::string& part : s.names) {
    std::vector<int64_t> shape = {s.shape[0]};
    if (s.kind == WeightKind::conv_taps) shape = {s.shape[0] / parts, 1, s.shape[1]};
    all.push_back({p.prefix + part + s.suffix, DType::f32, shape, nullptr});
  }
  return all;
}

int64_t bytes_of(const TensorToWrite& t) {
  int64_t bytes = 0;
  if (!tensor_bytes(t.dtype, t.shape, &bytes)) fail(ErrorCode::invalid_argument, t.name, ": no size");
  return bytes;
}

int64_t write_shard(const std::string& path, const std::vector<TensorToWrite>& tensors) {
  SafetensorsWriter file(path, tensors);
  int64_t total = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = bytes_of(tensors[i]), most = std::ssize(pattern());
    for (int64_t at = 0; at < bytes; at += most) file.write(i, at, pattern().data(), std::min(most, bytes - at));
    total += bytes;
  }
  file.commit();
  return total;
}

}  // namespace

DummyCheckpoint write_dummy_checkpoint(const std::string& directory, int64_t shard_bytes, bool mx_experts) {
  const auto model = make_model(read_config(directory));
  DummyCheckpoint result;
  CheckpointIndex index;
  std::vector<TensorToWrite> shard;
  int64_t in_shard = 0;
  const auto flush = [&] {
    if (shard.empty()) return;
    index.shards.push_back(str("model-", result.shards + 10001, ".safetensors"));
    for (const TensorToWrite& t : shard) index.entries.push_back({t.name, result.shards});
    const int64_t bytes = write_shard(directory + "/" + index.shards.back(), shard);
    result.bytes += bytes;
    result.largest_shard = std::max(result.largest_shard, bytes);
    ++result.shards;
    shard.clear();
    in_shard = 0;
  };
  for (const PlacedSpec& p : model->weights())
    for (TensorToWrite& t : tensors_of(p, mx_experts)) {
      const int64_t bytes = bytes_of(t);
      if (in_shard + bytes > shard_bytes) flush();
      in_shard += bytes;
      shard.push_back(std::move(t));
    }
  flush();
  index.total_size = result.bytes;
  std::ranges::sort(index.entries, {}, &CheckpointIndex::Entry::tensor);
  write_text_file(directory + "/model.safetensors.index.json", checkpoint_index_text(index));
  return result;
}

}  // namespace kdelta::test
