// Loads a checkpoint of the repository and runs token ids through the engine, for tests that cross folders.
#pragma once

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <vector>

#include "kdelta/io/mapped_file.h"
#include "kdelta/io/safetensors.h"
#include "kdelta/model/load.h"
#include "kdelta/runtime/engine.h"

namespace kdelta::test {

// NaN equals itself here, and 0 is not -0; either may be empty.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  return std::ranges::equal(a, b, {}, bits, bits);
}

// The tensors of one safetensors file by name.
class TensorFile {
 public:
  explicit TensorFile(const std::string& path);
  std::vector<float> floats(const std::string& name) const;
  std::vector<int32_t> ints(const std::string& name) const;
  const TensorInfo& info(const std::string& name) const;

 private:
  MappedFile file_;
  std::map<std::string, TensorInfo> tensors_;
};

// Keeps every named tensor of a run: one concatenation over steps per (name, layer).
class Recorder final : public TensorProbe {
 public:
  void on_tensor(std::string_view name, int layer, const AnyConstView& tensor, Stream* stream) override;
  const std::vector<float>& get(const std::string& name, int layer) const { return data_.at({name, layer}); }

 private:
  std::map<std::pair<std::string, int>, std::vector<float>> data_;
};

// Where these tests run models: the CPU, unless their program says otherwise.
Device& test_device();
// A checkpoint whose weights are there.
LoadedModel load_placed(const std::string& directory);

struct RunResult {
  std::vector<float> logits;  // [T, vocabulary]
  std::vector<float> state;   // layer 0, first pool of the request's slot
  std::vector<float> conv;    // layer 0, second pool
};

runtime::EngineConfig engine_config(DType activation);

// All tokens of one sequence in pieces of `chunk` (0: as the engine cuts them), logits of every position.
RunResult run_logits(const Model& model, const runtime::EngineConfig& config, const std::vector<int32_t>& ids,
                     int64_t chunk = 0, TensorProbe* probe = nullptr);

// `count` greedy tokens after the prompt; logits of each step when wanted.
std::vector<int32_t> run_greedy(const Model& model, const runtime::EngineConfig& config,
                                const std::vector<int32_t>& prompt, int64_t count,
                                std::vector<float>* logits = nullptr);

}  // namespace kdelta::test
