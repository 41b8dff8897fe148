// Counts and times in the text format of Prometheus, under the names that vLLM's users know.
#pragma once

#include <string>

#include "kdelta/api/service.h"

namespace kdelta::server {

// prefix: in front of every name but those of the process; "vllm" is "vllm:", as that engine's names are. model: a
// label of each.
std::string metrics_text(const ServiceStats& stats, const std::string& prefix, const std::string& model);

}  // namespace kdelta::server
