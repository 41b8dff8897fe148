// Sampling flags over the checkpoint's defaults.
#pragma once

#include "frontends/cli/commands.h"

namespace kdelta::cli {

// Throws on a malformed --logit-bias. Without --seed a random one is drawn; run prints it, so any answer can be had
// again.
GenerateOptions generate_options(const Engine& engine, const SamplingFlags& flags);

}  // namespace kdelta::cli
