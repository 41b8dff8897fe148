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
  // bodies of completions themselves, named by their number. A field of a body that is not honoured and would change
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

// Of the output what is no file that may be written, and of both that they are one file. run_batch() asks again.
void check_options(const BatchOptions& options);

// A request that cannot be read or served gets a line with its error. Throws for files that cannot be read or written,
// for an output that holds something else, and for an id that the input names twice.
BatchProgress run_batch(Engine& engine, const BatchOptions& options);

}  // namespace kdelta
