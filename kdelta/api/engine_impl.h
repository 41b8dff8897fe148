// What the public Engine holds; shared by the files that implement its parts.
#pragma once

#include <optional>

#include "kdelta/api/engine.h"
#include "kdelta/io/tokenizer.h"
#include "kdelta/model/load.h"
#include "kdelta/runtime/engine.h"

namespace kdelta {

struct Engine::Impl {
  LoadOptions options;
  LoadedModel model;
  ModelInfo info;
  MemoryReport memory;
  runtime::EngineConfig config;
  std::unique_ptr<runtime::Engine> engine;  // null when headers_only
  std::optional<Tokenizer> tokenizer;
  std::string tokenizer_problem;
  std::vector<int32_t> end_ids;

  // Throws unless this engine was loaded to compute, with or without all_logits.
  runtime::Engine& running(bool all_logits) const;
  const Tokenizer& text() const;
};

}  // namespace kdelta
