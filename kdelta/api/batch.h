// Files of requests in the OpenAI batch format, answered many at once.
#pragma once

#include "kdelta/api/engine.h"

namespace kdelta {

struct BatchProgress {
  int64_t total = 0;    // requests of the input
  int64_t skipped = 0;  // answered by an earlier run, not with an error
  int64_t done = 0, failed = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, tokens = 0;
  double seconds = 0;
};

struct BatchOptions {
  // Lines {"custom_id", "url": "/v1/completions" or "/v1/chat/completions", "body": {...}}. Lines without "body" are
  // bodies of completions themselves. A field of a body that is not honoured and would change
  // the answer is an error of that request: docs/batch.md lists which is which.
  std::string input;
  // A line per request, in the order in which they end, flushed at once. Answers that it holds are kept and not asked
  // again, and refused when their request has changed since, or the model, its precision or the defaults; requests that
  // it holds errors of are tried again, and a last line that is torn is cut off. Not the input; locked against other
  // processes.
  std::string output;
  GenerateOptions defaults;  // where a body says nothing
  std::function<void(const BatchProgress&)> progress;
  std::function<void(const std::string& id, const std::string& why)> failed;  // a request, as its line says too
  const std::atomic<bool>* cancel = nullptr;
};

struct BatchLine {
  std::string id;  // its custom_id, where that can be read, else its number in the file: "line-3"
  std::string text;
};

// The input, read before a model is loaded. Throws for files that cannot be read or written, for one that is both, for
// an output that holds something else, and for an id that the input names twice.
std::vector<BatchLine> read_batch(const BatchOptions& options);

// A request that cannot be read or served gets a line with its error. Throws, beside what read_batch() throws, for
// answers of other requests than these. `lines`: of read_batch(), with the same options.
BatchProgress run_batch(Engine& engine, const BatchOptions& options, std::vector<BatchLine> lines);
inline BatchProgress run_batch(Engine& engine, const BatchOptions& options) {
  return run_batch(engine, options, read_batch(options));
}

}  // namespace kdelta
