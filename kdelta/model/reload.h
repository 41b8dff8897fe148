// New weights for a loaded model, all or nothing, on every rank of it or on none. Not while a step runs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kdelta/core/communicator.h"
#include "kdelta/model/load.h"

namespace kdelta {

// A whole tensor under its name in the checkpoint; the weights keep `data` for as long as they use it.
struct NewTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::shared_ptr<const void> data;
};

// Both return the identity of the model with the new weights. `comm`: of the ranks that hold the other parts, every one
// of which calls this with the same argument; null: there are none. What one of them refuses all of them refuse: it
// throws its own error, the others Error(bad_file) with the rank and its reason.

// All weights from `directory`, whose config.json, `config`, describes the same model. Throws Error(bad_file) naming
// the tensor that is missing, misshapen, of another format than the one in use, or strange (judge_unused()).
uint64_t reload_weights(LoadedModel& model, const ModelConfig& config, const std::string& directory,
                        Communicator* comm = nullptr);
// Some tensors; `identity` is the model's before. Throws Error(invalid_argument) also for one that no rank asks for.
uint64_t replace_weights(LoadedModel& model, uint64_t identity, const std::vector<NewTensor>& tensors,
                         Communicator* comm = nullptr);

}  // namespace kdelta
