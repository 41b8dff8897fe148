#include "kdelta/api/c_engine.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

#include "kdelta/api/c_status.h"
#include "kdelta/api/service.h"

using namespace kdelta;

struct kdelta_engine {
  Engine engine;
  pid_t owner = getpid();
  std::mutex busy = {};
  std::atomic<std::thread::id> caller = {};  // who holds `busy`
};

struct kdelta_bytes {
  std::vector<char> data;
};

struct kdelta_service {
  Service service;
  GenerateOptions defaults;
  pid_t owner = getpid();
};

struct kdelta_session {
  std::unique_ptr<ServiceAnswer> answer;
};

namespace {

// One call at a time, never from within itself, never in the child of a fork, whose engine has no threads.
class Turn {
 public:
  Turn(kdelta_engine* engine, const char* function) : engine_(engine) {
    c::expect_given(engine, function, "engine");
    if (engine->owner != getpid())
      fail(ErrorCode::invalid_argument, function, ": engine: made by another process; after fork() load it anew");
    if (engine->caller.load() == std::this_thread::get_id())
      fail(ErrorCode::invalid_argument, function, ": called from a callback of the same engine");
    engine->busy.lock();
    engine->caller = std::this_thread::get_id();
  }
  ~Turn() {
    engine_->caller = std::thread::id();
    engine_->busy.unlock();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  Engine* operator->() const { return &engine_->engine; }

 private:
  kdelta_engine* engine_;
};

void set_if(std::string& field, const char* value) {
  if (value != nullptr) field = value;
}

LoadOptions load_options(const kdelta_load_options& o) {
  LoadOptions l;
  if (o.model == nullptr) fail(ErrorCode::invalid_argument, "model: null pointer");
  l.model = o.model;
  set_if(l.device, o.device);
  set_if(l.dtype, o.dtype);
  set_if(l.state_dtype, o.state_dtype);
  set_if(l.isa, o.isa);
  set_if(l.force, o.force);
  set_if(l.draft_model, o.draft_model);
  l.threads = o.threads;
  l.exact = o.exact != 0;
  l.max_length = o.max_length;
  if (o.max_sequences != 0) l.max_sequences = o.max_sequences;
  l.cache_tokens = o.cache_tokens;
  l.drafts = o.drafts;
  l.prefix_snapshots = o.prefix_snapshots;
  if (o.progress != nullptr) l.progress = [o](int64_t done, int64_t total) { o.progress(done, total, o.user); };
  return l;
}

template <class T>
std::vector<T> copied(const T* data, size_t count, const char* name) {
  if (count > 0 && data == nullptr) fail(ErrorCode::invalid_argument, name, ": null pointer of ", count, " elements");
  if (count > (size_t{1} << 40)) fail(ErrorCode::invalid_argument, name, ": ", count, " elements");
  return count == 0 ? std::vector<T>() : std::vector<T>(data, data + count);
}

GenerateOptions generate_options(const kdelta_generate_options* given, const GenerateOptions& defaults) {
  if (given == nullptr) return defaults;
  const auto o = c::read_struct(given, "kdelta_generate_options");
  GenerateOptions g;
  g.temperature = o.temperature;
  g.top_p = o.top_p;
  g.min_p = o.min_p;
  g.top_k = o.top_k;
  g.repetition_penalty = o.repetition_penalty;
  g.presence_penalty = o.presence_penalty;
  g.frequency_penalty = o.frequency_penalty;
  g.ignore_eos = o.ignore_eos != 0;
  g.show_specials = o.show_specials != 0;
  g.seed = o.seed;
  g.max_tokens = o.max_tokens;
  g.min_tokens = o.min_tokens;
  g.stop_ids = copied(o.stop_ids, o.stop_ids_count, "stop_ids");
  for (const char* text : copied(o.stop, o.stop_count, "stop")) {
    if (text == nullptr) fail(ErrorCode::invalid_argument, "stop: null pointer");
    g.stop.emplace_back(text);
  }
  return g;
}

// The caller's callback, until it has had enough.
class Delta {
 public:
  Delta(kdelta_on_delta call, void* user) : call_(call), user_(user) {}
  void operator()(const std::string& text, const std::vector<int32_t>& tokens) {
    if (call_ != nullptr && !enough_ && call_(text.data(), text.size(), tokens.data(), tokens.size(), user_) != 0)
      enough_ = true;
  }
  const std::atomic<bool>* enough() const { return &enough_; }

 private:
  kdelta_on_delta call_;
  void* user_;
  std::atomic<bool> enough_ = false;
};

void expect_end(const kdelta_end* end) {
  if (end != nullptr && end->struct_size != sizeof(kdelta_end))
    fail(ErrorCode::invalid_argument, "kdelta_end: struct_size ", end->struct_size, ", expected ", sizeof(kdelta_end));
}

void write_end(kdelta_end* end, const std::string& reason, int64_t prompt, int64_t cached, int64_t tokens,
               double prefill, double decode) {
  if (end == nullptr) return;
  *end = {sizeof(kdelta_end), {}, prompt, cached, tokens, prefill, decode};
  std::strncpy(end->finish_reason, reason.c_str(), sizeof(end->finish_reason) - 1);
}

void write_end(kdelta_end* end, const Generation& g) {
  write_end(end, g.finish_reason, g.prompt_tokens, g.cached_tokens, static_cast<int64_t>(g.tokens.size()),
            g.prefill_seconds, g.decode_seconds);
}

// Elements up to the capacity, and how many there are.
template <class T, class Container>
void write_out(const Container& from, T* to, size_t capacity, size_t* count) {
  if (capacity > 0 && to == nullptr) fail(ErrorCode::invalid_argument, "capacity ", capacity, " of a null pointer");
  std::copy_n(from.begin(), std::min(capacity, from.size()), to);
  *count = from.size();
}

}  // namespace

kdelta_status kdelta_engine_load(const kdelta_load_options* options, kdelta_engine** out) {
  return c::guarded([&] {
    c::expect_given(out, "kdelta_engine_load", "out");
    *out = nullptr;
    const LoadOptions l = load_options(c::read_struct(options, "kdelta_engine_load: options"));
    check_options(l);
    *out = new kdelta_engine{Engine::load(l)};
  });
}

void kdelta_engine_destroy(kdelta_engine* engine) {
  delete engine;
}

int64_t kdelta_engine_vocab_size(const kdelta_engine* engine) {
  return engine == nullptr ? -1 : engine->engine.vocab_size();
}

int64_t kdelta_engine_max_length(const kdelta_engine* engine) {
  return engine == nullptr ? -1 : engine->engine.max_length();
}

kdelta_status kdelta_tokenize(kdelta_engine* engine, const char* text, size_t bytes, int32_t specials, int32_t* ids,
                              size_t capacity, size_t* count) {
  return c::guarded([&] {
    const Turn turn(engine, "kdelta_tokenize");
    c::expect_given(count, "kdelta_tokenize", "count");
    const std::vector<char> given = copied(text, bytes, "text");
    write_out(turn->tokenize(std::string(given.begin(), given.end()), specials != 0), ids, capacity, count);
  });
}

kdelta_status kdelta_detokenize(kdelta_engine* engine, const int32_t* ids, size_t ids_count, int32_t specials,
                                char* text, size_t capacity, size_t* count) {
  return c::guarded([&] {
    const Turn turn(engine, "kdelta_detokenize");
    c::expect_given(count, "kdelta_detokenize", "count");
    write_out(turn->detokenize(copied(ids, ids_count, "ids"), specials != 0), text, capacity, count);
  });
}

kdelta_status kdelta_generate_options_init(const kdelta_engine* engine, kdelta_generate_options* options) {
  return c::guarded([&] {
    c::expect_given(engine, "kdelta_generate_options_init", "engine");
    c::expect_given(options, "kdelta_generate_options_init", "options");
    const GenerateOptions g = engine->engine.default_generation();
    *options = {};
    options->struct_size = sizeof(*options);
    options->temperature = g.temperature;
    options->top_p = g.top_p;
    options->min_p = g.min_p;
    options->top_k = g.top_k;
    options->repetition_penalty = g.repetition_penalty;
    options->presence_penalty = g.presence_penalty;
    options->frequency_penalty = g.frequency_penalty;
    options->seed = g.seed;
    options->max_tokens = g.max_tokens;
    options->min_tokens = g.min_tokens;
  });
}

kdelta_status kdelta_generate(kdelta_engine* engine, const int32_t* prompt, size_t prompt_count,
                              const kdelta_generate_options* options, kdelta_on_delta on_delta, void* user,
                              kdelta_end* end) {
  return kdelta_start(engine, prompt, prompt_count, options, INT64_MAX, on_delta, user, end, nullptr);
}

const void* kdelta_bytes_data(const kdelta_bytes* bytes) {
  return bytes == nullptr ? nullptr : bytes->data.data();
}

size_t kdelta_bytes_size(const kdelta_bytes* bytes) {
  return bytes == nullptr ? 0 : bytes->data.size();
}

void kdelta_bytes_destroy(kdelta_bytes* bytes) {
  delete bytes;
}

kdelta_status kdelta_start(kdelta_engine* engine, const int32_t* prompt, size_t prompt_count,
                           const kdelta_generate_options* options, int64_t tokens, kdelta_on_delta on_delta, void* user,
                           kdelta_end* end, kdelta_bytes** state) {
  return c::guarded([&] {
    if (state != nullptr) *state = nullptr;
    const Turn turn(engine, "kdelta_start");
    if (state == nullptr && tokens != INT64_MAX) c::expect_given(state, "kdelta_start", "state");
    expect_end(end);
    Delta delta(on_delta, user);
    GenerateOptions o = generate_options(options, turn->default_generation());
    o.cancel = delta.enough();
    check_options(o);
    Started s = turn->start(copied(prompt, prompt_count, "prompt"), o, tokens, std::ref(delta));
    write_end(end, s.generation);
    if (state != nullptr && !s.state.empty()) *state = new kdelta_bytes{std::move(s.state)};
  });
}

kdelta_status kdelta_resume(kdelta_engine* engine, const void* state, size_t bytes, kdelta_on_delta on_delta,
                            void* user, kdelta_end* end) {
  return c::guarded([&] {
    const Turn turn(engine, "kdelta_resume");
    expect_end(end);
    if (state == nullptr) fail(ErrorCode::invalid_argument, "kdelta_resume: state: null pointer");
    Delta delta(on_delta, user);
    const ResumeOptions o{.stop = {}, .show_specials = false, .cancel = delta.enough()};
    write_end(end, turn->resume({static_cast<const char*>(state), bytes}, o, std::ref(delta)));
  });
}

kdelta_status kdelta_service_create(kdelta_engine* engine, kdelta_service** out) {
  return c::guarded([&] {
    const std::unique_ptr<kdelta_engine> taken(engine);
    c::expect_given(engine, "kdelta_service_create", "engine");
    c::expect_given(out, "kdelta_service_create", "out");
    *out = nullptr;
    const GenerateOptions defaults = engine->engine.default_generation();
    *out = new kdelta_service{Service(std::move(engine->engine)), defaults};
  });
}

void kdelta_service_destroy(kdelta_service* service) {
  delete service;
}

kdelta_status kdelta_submit(kdelta_service* service, const int32_t* prompt, size_t prompt_count,
                            const kdelta_generate_options* options, kdelta_session** out) {
  return c::guarded([&] {
    c::expect_given(service, "kdelta_submit", "service");
    c::expect_given(out, "kdelta_submit", "out");
    *out = nullptr;
    if (service->owner != getpid())
      fail(ErrorCode::invalid_argument, "kdelta_submit: service: made by another process");
    ServiceRequest request;
    request.task = {copied(prompt, prompt_count, "prompt"), generate_options(options, service->defaults)};
    auto submitted = service->service.submit(std::move(request));
    switch (submitted.admission) {
      case Admission::accepted:
        *out = new kdelta_session{std::move(submitted.answer)};
        return;
      case Admission::full:
        fail(ErrorCode::out_of_memory, "kdelta_submit: too many requests wait");
      case Admission::draining:
      case Admission::dead:
        fail(ErrorCode::failed, "kdelta_submit: the service has ended: ", service->service.problem());
    }
  });
}

kdelta_status kdelta_session_wait(kdelta_session* session, int64_t milliseconds, kdelta_on_delta on_delta, void* user,
                                  int32_t* ended, kdelta_end* end) {
  return c::guarded([&] {
    c::expect_given(session, "kdelta_session_wait", "session");
    c::expect_given(ended, "kdelta_session_wait", "ended");
    expect_end(end);
    *ended = 0;
    constexpr int64_t kMost = int64_t{1} << 32;
    ServiceDelta got;
    if (!session->answer->wait(&got, std::chrono::milliseconds(std::clamp<int64_t>(milliseconds, 0, kMost)))) return;
    Delta delta(on_delta, user);
    std::string text;
    for (const AnswerPart& part : got.parts) text += part.text;
    if (!text.empty() || !got.tokens.empty()) delta(text, got.tokens);
    if (delta.enough()->load()) session->answer->cancel();
    if (!got.end) return;
    *ended = 1;
    const ServiceEnd& e = *got.end;
    write_end(end, e.reason, e.prompt_tokens, e.cached_tokens, e.tokens, e.timings.prefill, e.timings.decode);
    if (e.reason == "error") fail(ErrorCode::failed, e.error);
  });
}

void kdelta_session_cancel(kdelta_session* session) {
  if (session != nullptr) session->answer->cancel();
}

void kdelta_session_destroy(kdelta_session* session) {
  delete session;
}
