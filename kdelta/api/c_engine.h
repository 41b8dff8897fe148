/* Models in C: load one, turn text into tokens, generate, hand a request to another process; and a service that many
 * threads share. C99 and C++. What the options mean is written where the C++ door has them (kdelta/api/options.h).
 *
 * An engine answers one call at a time; threads that call it together wait for one another, and a call from its own
 * callback is refused. A service has a thread of its own and answers many. Neither follows a fork. */
#ifndef KDELTA_API_C_ENGINE_H_
#define KDELTA_API_C_ENGINE_H_

#include "kdelta/api/c_base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kdelta_engine kdelta_engine;
typedef struct kdelta_service kdelta_service;
typedef struct kdelta_session kdelta_session;

/* NULL and 0 in a field: its usual value. */
typedef struct kdelta_load_options {
  size_t struct_size KDELTA_DEFAULT(sizeof(kdelta_load_options));
  const char* model KDELTA_DEFAULT(nullptr);       /* directory with config.json and safetensors files */
  const char* device KDELTA_DEFAULT(nullptr);      /* "cpu", "cuda", "cuda:N", "auto" */
  const char* dtype KDELTA_DEFAULT(nullptr);       /* "bf16", "fp32" */
  const char* state_dtype KDELTA_DEFAULT(nullptr); /* "fp32", "bf16" */
  const char* isa KDELTA_DEFAULT(nullptr);
  const char* force KDELTA_DEFAULT(nullptr);
  const char* draft_model KDELTA_DEFAULT(nullptr);
  int32_t threads KDELTA_DEFAULT(0);
  int32_t exact KDELTA_DEFAULT(0);
  int64_t max_length KDELTA_DEFAULT(0);
  int64_t max_sequences KDELTA_DEFAULT(0); /* of a service: how many run at once; 0: 1 */
  int64_t cache_tokens KDELTA_DEFAULT(0);
  int64_t drafts KDELTA_DEFAULT(0);
  int64_t prefix_snapshots KDELTA_DEFAULT(0);
  void (*progress)(int64_t done, int64_t total, void* user) KDELTA_DEFAULT(nullptr); /* bytes in memory */
  void* user KDELTA_DEFAULT(nullptr);
} kdelta_load_options;

KDELTA_API kdelta_status kdelta_engine_load(const kdelta_load_options* options, kdelta_engine** out);
KDELTA_API void kdelta_engine_destroy(kdelta_engine* engine);             /* NULL is fine */
KDELTA_API int64_t kdelta_engine_vocab_size(const kdelta_engine* engine); /* -1 for NULL */
KDELTA_API int64_t kdelta_engine_max_length(const kdelta_engine* engine); /* of prompt and answer; -1 for NULL */

/* Both write at most `capacity` and say in count how many there are: call once with capacity 0 to learn it. Text is
 * UTF-8 and is not terminated. specials: names of special tokens in the text are recognised, or shown. */
KDELTA_API kdelta_status kdelta_tokenize(kdelta_engine* engine, const char* text, size_t bytes, int32_t specials,
                                         int32_t* ids, size_t capacity, size_t* count);
KDELTA_API kdelta_status kdelta_detokenize(kdelta_engine* engine, const int32_t* ids, size_t ids_count,
                                           int32_t specials, char* text, size_t capacity, size_t* count);

/* Set by kdelta_generate_options_init to the model's own defaults; zeros are not. */
typedef struct kdelta_generate_options {
  size_t struct_size;
  float temperature, top_p, min_p;
  int32_t top_k;
  float repetition_penalty, presence_penalty, frequency_penalty;
  int32_t ignore_eos, show_specials;
  uint64_t seed;
  int64_t max_tokens, min_tokens;
  const int32_t* stop_ids;
  size_t stop_ids_count;
  const char* const* stop; /* UTF-8, terminated */
  size_t stop_count;
} kdelta_generate_options;
KDELTA_API kdelta_status kdelta_generate_options_init(const kdelta_engine* engine, kdelta_generate_options* options);

/* New tokens and the text that they complete. Not 0: enough, the answer ends as "cancelled". */
typedef int32_t (*kdelta_on_delta)(const char* text, size_t bytes, const int32_t* tokens, size_t count, void* user);

typedef struct kdelta_end {
  size_t struct_size;
  char finish_reason[16]; /* "stop", "length", "cancelled", "error"; "": stopped by kdelta_start, it may go on */
  int64_t prompt_tokens, cached_tokens, tokens;
  double prefill_seconds, decode_seconds;
} kdelta_end;

/* Continues a prompt. options NULL: the model's own defaults; on_delta and end may be NULL. */
KDELTA_API kdelta_status kdelta_generate(kdelta_engine* engine, const int32_t* prompt, size_t prompt_count,
                                         const kdelta_generate_options* options, kdelta_on_delta on_delta, void* user,
                                         kdelta_end* end);

/* Bytes that the library made, for as long as they are not destroyed. */
typedef struct kdelta_bytes kdelta_bytes;
KDELTA_API const void* kdelta_bytes_data(const kdelta_bytes* bytes);
KDELTA_API size_t kdelta_bytes_size(const kdelta_bytes* bytes);
KDELTA_API void kdelta_bytes_destroy(kdelta_bytes* bytes);

/* kdelta_generate that stops behind the first `tokens` tokens and hands out the request's whole state; *state is NULL
 * when it has ended. kdelta_resume goes on there, in this engine or in another process's: nothing is computed twice,
 * and both answers joined are that of kdelta_generate to the bit. */
KDELTA_API kdelta_status kdelta_start(kdelta_engine* engine, const int32_t* prompt, size_t prompt_count,
                                      const kdelta_generate_options* options, int64_t tokens, kdelta_on_delta on_delta,
                                      void* user, kdelta_end* end, kdelta_bytes** state);
KDELTA_API kdelta_status kdelta_resume(kdelta_engine* engine, const void* state, size_t bytes, kdelta_on_delta on_delta,
                                       void* user, kdelta_end* end);

/* A service takes the engine, which is not the caller's any more, whatever the outcome. All its functions, and those of
 * its sessions, from any thread. Destroying it ends every session as "cancelled". */
KDELTA_API kdelta_status kdelta_service_create(kdelta_engine* engine, kdelta_service** out);
KDELTA_API void kdelta_service_destroy(kdelta_service* service);
/* Queues a request; KDELTA_OUT_OF_MEMORY when too many wait, KDELTA_FAILED when the engine is broken. */
KDELTA_API kdelta_status kdelta_submit(kdelta_service* service, const int32_t* prompt, size_t prompt_count,
                                       const kdelta_generate_options* options, kdelta_session** out);
/* Waits at most that long for something new and passes it to on_delta on this thread; *ended: 1 when nothing will come
 * any more, and end is filled. An answer that failed gives KDELTA_FAILED with its message. */
KDELTA_API kdelta_status kdelta_session_wait(kdelta_session* session, int64_t milliseconds, kdelta_on_delta on_delta,
                                             void* user, int32_t* ended, kdelta_end* end);
KDELTA_API void kdelta_session_cancel(kdelta_session* session);
/* Cancels what has not ended. May come after the service's. */
KDELTA_API void kdelta_session_destroy(kdelta_session* session);

#ifdef __cplusplus
}
#endif

#endif
