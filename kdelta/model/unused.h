// What a checkpoint holds and the model does not read: harmless (vision, layers past the last, strange names) and
// noted, or the sign of a config that says less than the file, and refused. A switch that is missing from config.json
// would otherwise leave its tensor out without a word and give a slightly different model.
#pragma once

#include <string>
#include <vector>

#include "kdelta/io/checkpoint.h"
#include "kdelta/model/config.h"
#include "kdelta/model/shard.h"

namespace kdelta {

// Takes out of `unused`, the tensors that no weight of this part of `config` named, those of the experts that other
// ranks hold. (Of everything else that is dealt every rank holds a part.)
void drop_other_ranks(const ModelConfig& config, const Shard& shard, std::vector<std::string>* unused);

// Notes, a line each, on `unused`, the tensors that no weight of `config` named. Throws Error(bad_file) naming the
// tensor for
//   a weight under both prefixes ("language_model." and none);
//   a tensor of a layer of the model that only a switch of config.json would use which is absent or off: the field too;
//   a bias, a second scale, a zero point or an order of columns beside a weight that the model reads: whoever wrote it
//   computes something else with that weight;
//   an lm_head.weight that differs, in this part, from the embedding it is said to be tied to (headers_only: in shape
//   or dtype).
std::vector<std::string> judge_unused(const Checkpoint& checkpoint, const ModelConfig& config, const Shard& shard,
                                      const std::vector<std::string>& unused, bool headers_only);

}  // namespace kdelta
