// A whole model of random weights on the device: prefill and decode, against what its bytes would take.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kdelta::gpu_bench {

struct ModelFlags {
  std::string config;   // directory with a config.json
  std::string results;  // file to write; empty: none
  std::string commit = "unknown";
  std::string parts = "decode,prefill,profile";  // and trace: two steps that a profiler is told of, nothing timed
  std::vector<int64_t> batches = {1, 8, 64};     // of decode steps
  int64_t overlap_rows = -1;                     // Options::overlap_rows; -1: the default
  int64_t most_prompt = 131072;                  // of prompts: those of 1k, 8k, 32k, 128k up to it
  bool exact = false;                            // Options::exact; of decode steps, recorded ones alone
};
int run_model(const ModelFlags& flags);

}  // namespace kdelta::gpu_bench
