// Files of requests in the OpenAI batch format, answered many at once.
#pragma once

#include "kdelta/api/engine.h"

namespace kdelta {

struct BatchProgress {
  int64_t total = 0;    // requests of the input
  int64_t skipped = 0;  // answered by an earlier run
  int64_t done = 0, failed = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, tokens = 0;
  double seconds = 0;
};

struct BatchOptions {
  // Lines {"custom_id", "url": "/v1/completions" or "/v1/chat/completions", "body": {...}}. Lines without "body" are
  // bodies of completions themselves, named by their number.
  std::string input;
  // A line per request, in the order in which they end, flushed at once. What it holds already is kept: such requests
  // are not asked again, and a last line that is torn is cut off.
  std::string output;
  GenerateOptions defaults;  // where a body says nothing
  std::function<void(const BatchProgress&)> progress;
  const std::atomic<bool>* cancel = nullptr;
};

// A request that cannot be read or served gets a line with its error. Throws for files that cannot be read or written,
// and for an id that the input names twice.
BatchProgress run_batch(Engine& engine, const BatchOptions& options);

}  // namespace kdelta
