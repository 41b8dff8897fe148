// What can be said about a model from its config and headers alone.
#pragma once

#include "kdelta/api/engine.h"
#include "kdelta/model/load.h"

namespace kdelta {

ModelInfo describe_model(const LoadedModel& model);

}  // namespace kdelta
