#include "kdelta/model/reload.h"

#include <exception>

#include "kdelta/core/check.h"
#include "kdelta/io/safetensors.h"
#include "kdelta/model/identity.h"
#include "kdelta/model/unused.h"

namespace kdelta {
namespace {

std::string reason_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

// Returns when no rank has an error; throws this rank's, or the first of the others'.
void agree(Communicator* comm, const std::exception_ptr& mine) {
  if (comm == nullptr) {
    if (mine) std::rethrow_exception(mine);
    return;
  }
  const std::string reason = mine ? reason_of(mine) : std::string();
  std::string theirs;
  const auto all = comm->meet("reload", {1}, &reason);
  for (size_t rank = 0; rank < all.size() && theirs.empty(); ++rank)
    if (const auto& said = *static_cast<const std::string*>(all[rank]); !said.empty())
      theirs = str("reload: rank ", rank, " of ", comm->ranks(), ": ", said);
  comm->leave();
  if (mine) std::rethrow_exception(mine);
  if (!theirs.empty()) throw Error(ErrorCode::bad_file, theirs);
}

// stage(): puts tensors and returns the identity to be.
template <class F>
uint64_t change_weights(LoadedModel& model, Communicator* comm, F stage) {
  WeightUpdate update(model.weights, WeightUpdate::Formats::kept);
  uint64_t identity = 0;
  std::exception_ptr error;
  try {
    identity = stage(update);
    update.prepare();
  } catch (const std::exception&) {
    error = std::current_exception();
  }
  agree(comm, error);
  update.commit();
  if (!model.on_device.empty()) model.on_device.refresh();
  return identity;
}

}  // namespace

uint64_t reload_weights(LoadedModel& model, const ModelConfig& config, const std::string& directory,
                        Communicator* comm) {
  return change_weights(model, comm, [&](WeightUpdate& update) {
    const auto checkpoint = std::make_shared<const Checkpoint>(Checkpoint::open(directory));
    const std::string theirs = find_weight_prefix(*checkpoint, config), &ours = model.config.weight_prefix;
    std::vector<std::string> unused;
    for (const TensorInfo& t : checkpoint->tensors()) {
      const std::string name = t.name.starts_with(theirs) ? ours + t.name.substr(theirs.size()) : t.name;
      if (!update.put(name, t.dtype, t.shape, checkpoint->data(t), checkpoint)) unused.push_back(t.name);
    }
    update.require_all();
    ModelConfig named = model.config;
    named.weight_prefix = theirs;
    const Shard& shard = model.model->shard();
    drop_other_ranks(named, shard, &unused);
    (void)judge_unused(*checkpoint, named, shard, unused, false);
    return model_identity(named, checkpoint.get(), unused);
  });
}

uint64_t replace_weights(LoadedModel& model, uint64_t identity, const std::vector<NewTensor>& tensors,
                         Communicator* comm) {
  return change_weights(model, comm, [&](WeightUpdate& update) {
    for (const NewTensor& t : tensors) {
      int64_t bytes = 0;
      if (!update.put(t.name, t.dtype, t.shape, t.data.get(), t.data)) {
        std::vector<std::string> others = {t.name};
        drop_other_ranks(model.config, model.model->shard(), &others);
        if (!others.empty()) fail(ErrorCode::invalid_argument, "reload: ", t.name, ": no such tensor in this model");
      }
      if (!tensor_bytes(t.dtype, t.shape, &bytes) || (t.data == nullptr && bytes > 0))
        fail(ErrorCode::invalid_argument, "reload: ", t.name, ": ", dtype_name(t.dtype), " of shape ",
             shape_text(t.shape), bytes > 0 ? " and no data" : " has no size");
      identity =
          replaced_identity(identity, t.name, {static_cast<const uint8_t*>(t.data.get()), static_cast<size_t>(bytes)});
    }
    return identity;
  });
}

}  // namespace kdelta
