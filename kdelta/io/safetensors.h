// One safetensors file: its header parsed and checked against the file's size. Format
// (github.com/huggingface/safetensors): 8-byte little-endian header length, JSON header {name: {dtype, shape,
// data_offsets}}, data; offsets count from the end of the header.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kdelta/io/checkpoint.h"

namespace kdelta {

// The format's own limit: its reference reader refuses longer headers, so no file in the wild has one. A shard of Kimi
// K3 (5,404 tensors) has 0.8 MB.
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

// The tensors of the file in the order of their data, `begin` counted from the start of the file. `file` is the whole
// file, `path` its name in messages. Throws Error(bad_file) unless every byte of the data part belongs to exactly one
// tensor, every tensor has the size of its shape and dtype, and names are unique; see Checkpoint::open.
std::vector<TensorInfo> parse_safetensors(std::span<const uint8_t> file, const std::string& path);

// Writes a file piece by piece: the header at once, then parts of tensors in any order, so that a tensor larger than
// memory can be written as it is made. The file appears under `path` only with commit(); an abandoned one is removed.
class SafetensorsWriter {
 public:
  // The `data` of the tensors is not used. Throws Error(invalid_argument) for a path that is no regular file and for
  // tensors that could not be read back, Error(failed) when the file cannot be created.
  SafetensorsWriter(const std::string& path, std::span<const TensorToWrite> tensors,
                    std::span<const std::pair<std::string, std::string>> metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // `bytes` of tensor number `tensor` from its byte `begin` on, each byte once. Throws Error(failed) when the disk
  // does.
  void write(size_t tensor, int64_t begin, const void* data, int64_t bytes);
  // Throws Error(failed); a byte of a tensor that was not written is our own fault.
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Bytes of a dense tensor; false when the product leaves 64 bits or is no whole number of bytes (F4 with an odd count).
// The product is taken without the zero dimensions, so that strides of an empty tensor fit in 64 bits too.
bool tensor_bytes(DType dtype, std::span<const int64_t> shape, int64_t* bytes);
// "[2, 128]" for shapes of any rank.
std::string shape_text(std::span<const int64_t> shape);

}  // namespace kdelta
