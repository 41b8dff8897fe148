// From a directory to a model with weights: config, checkpoint, binding, in this order, refusing before memory is
// spent.
#pragma once

#include <optional>
#include <string>

#include "kdelta/model/gate_form.h"
#include "kdelta/model/model.h"

namespace kdelta {

enum class LoadFormat : uint8_t {
  checkpoint,
  dummy,        // random weights for any config.json; no tensor file is opened
  headers,      // shapes only: for memory plans and inspection, nothing may be computed
  config_only,  // the shapes of dummy: no tensor file is opened, nothing may be computed
};

// What a model's file leaves open.
struct LoadChoices {
  GateChoice kda_gate = GateChoice::factored;
  Shard shard;                 // the part of the model that is loaded, and all of the files that is read
  int64_t decode_rows = 1;     // sequences of a usual step, for GateChoice::automatic
  Options options;             // threads and instruction set of work at loading
  bool compose_later = false;  // LoadedModel::weights.compose() is still to be called
};

struct LoadedModel {
  ModelConfig config;
  std::unique_ptr<Model> model;
  std::optional<Checkpoint> checkpoint;
  BoundWeights weights;
  BindReport report;
  uint64_t identity = 0;           // model_identity(); 0 of shapes alone
  std::vector<std::string> notes;  // lines worth showing at start-up
  DeviceWeights on_device;         // empty: the weights are where they were bound
};

// What stands before "model." in the names of a checkpoint's text tensors: a re-export with or without
// "language_model." loads as it is. Throws Error(bad_file) when there is no embedding.
std::string find_weight_prefix(const Checkpoint& checkpoint, const ModelConfig& config);

// Throws Error(bad_file) naming file, tensor or field and the reason; so too for kda_gate composed when a factor is
// quantised, which automatic answers with the factored form and a note. Throws Error(unsupported) for parts that ranks
// cannot have, as make_model does.
LoadedModel load_model(const std::string& directory, LoadFormat format, const LoadChoices& choices = {});

// Copies the weights to a CUDA device, where alone the model can run then; those of LoadFormat::config_only are made
// there, with the values of LoadFormat::dummy. Throws Error(out_of_memory) and leaves the model as it was.
void place_weights(LoadedModel& model, Device device, const LoadChoices& choices,
                   const DeviceWeights::Progress& progress);

}  // namespace kdelta
