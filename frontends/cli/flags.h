// Flags that several commands have, or that are many. Includes CLI11: for main.cc and the files named *_flags.cc.
#pragma once

#include <CLI/CLI.hpp>

#include "frontends/cli/commands.h"

namespace kdelta::cli {

inline constexpr int64_t kMostTokens = int64_t{1} << 30;

// The model and how it runs.
void add_load(CLI::App& command, LoadOptions& options);
void add_drafts(CLI::App& command, LoadOptions& options);
// What only many requests need.
void add_serving(CLI::App& command, LoadOptions& options);
// `bench serve`.
CLI::App* add_bench_serve(CLI::App& bench, BenchServeOptions& options);

}  // namespace kdelta::cli
