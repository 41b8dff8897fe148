// Sampling flags over the checkpoint's defaults.
#pragma once

#include "frontends/cli/commands.h"

namespace kdelta::cli {

// Everything about the flags that can be wrong, before a model is loaded: ranges, the spelling of --logit-bias, ids
// outside the vocabulary that the model's config.json states. Throws.
void check_sampling(const SamplingFlags& flags, const std::string& model);
// Without --seed a random one is drawn; run prints it, so any answer can be had again.
GenerateOptions generate_options(const Engine& engine, const SamplingFlags& flags);
// Says on stderr that a seed was given for answers in which nothing is drawn.
void note_seed(const SamplingFlags& flags, const GenerateOptions& options);

}  // namespace kdelta::cli
