// Calls of the C interface of models, dealt out in any order and with any arguments: an engine, a service beside it and
// what they hand out. Every call is done or refused in words, writes its outputs and nothing else, and leaves all
// usable. It runs in the root of the repository.
#include <climits>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kdelta/api/c.h"
#include "kdelta/core/check.h"
#include "kdelta/io/fuzz_input.h"
#include "kdelta/io/json.h"

namespace {

using namespace kdelta;

bool checked(kdelta_status status) {
  KDELTA_CHECK(status >= KDELTA_OK && status < KDELTA_INTERNAL, kdelta_last_error());
  if (status != KDELTA_OK) KDELTA_CHECK(is_utf8(kdelta_last_error()) && kdelta_last_error()[0] != 0, status);
  return status == KDELTA_OK;
}

kdelta_engine* load() {
  const kdelta_load_options options{
      .model = "models/tiny-k3", .isa = "portable", .threads = 1, .max_length = 64, .max_sequences = 2};
  kdelta_engine* made = nullptr;
  KDELTA_CHECK(kdelta_engine_load(&options, &made) == KDELTA_OK, kdelta_last_error());
  return made;
}

// With memory behind it, so that any struct_size of a byte is true.
template <class T>
struct Longer {
  T fields{};
  unsigned char later[256] = {};
};

// An array for an output, with a guard behind it.
template <class T>
class Output {
 public:
  explicit Output(size_t capacity) : memory_(capacity + 4, kGuard) {}
  T* data() { return memory_.data(); }
  size_t capacity() const { return memory_.size() - 4; }
  void expect_guard() const {
    for (size_t i = capacity(); i < memory_.size(); ++i) KDELTA_CHECK(memory_[i] == kGuard, i);
  }

 private:
  static constexpr T kGuard = static_cast<T>(0x5a);
  std::vector<T> memory_;
};

class Session {
 public:
  explicit Session(fuzz::Input& in) : in_(in) {}
  ~Session() {
    for (kdelta_session* s : sessions_) kdelta_session_destroy(s);
    for (kdelta_bytes* b : states_) kdelta_bytes_destroy(b);
  }

  void call() {
    switch (in_.pick(8)) {
      case 0:
        return tokenize();
      case 1:
        return detokenize();
      case 2:
        return start();
      case 3:
        return resume();
      case 4:
        return submit();
      case 5:
        return wait();
      case 6:
        if (!sessions_.empty()) kdelta_session_cancel(sessions_[in_.pick(sessions_.size())]);
        return kdelta_session_cancel(nullptr);
      default:
        return refused_loads();
    }
  }

 private:
  static kdelta_engine* engine() {
    static kdelta_engine* const made = load();
    return made;
  }
  static kdelta_service* service() {
    static kdelta_service* const made = [] {
      kdelta_service* s = nullptr;
      KDELTA_CHECK(kdelta_service_create(load(), &s) == KDELTA_OK, kdelta_last_error());
      return s;
    }();
    return made;
  }

  void tokenize() {
    const std::string text(in_.bytes(40));
    Output<int32_t> ids(in_.pick(20));
    size_t count = 0;
    const bool bare = in_.pick(8) == 0;
    const bool done = checked(kdelta_tokenize(in_.pick(16) == 0 ? nullptr : engine(), bare ? nullptr : text.data(),
                                              text.size(), in_.pick(2) == 0 ? 0 : INT_MIN, ids.data(), ids.capacity(),
                                              in_.pick(16) == 0 ? nullptr : &count));
    ids.expect_guard();
    if (!done) return;
    for (size_t i = 0; i < std::min(count, ids.capacity()); ++i)
      KDELTA_CHECK(ids.data()[i] >= 0 && ids.data()[i] < kdelta_engine_vocab_size(engine()), ids.data()[i]);
  }

  std::vector<int32_t> tokens(size_t most) {
    std::vector<int32_t> out(in_.pick(most + 1));
    constexpr int32_t odd[] = {-1, INT32_MAX, INT32_MIN};
    for (int32_t& id : out) id = in_.pick(24) == 0 ? in_.of(odd) : static_cast<int32_t>(in_.pick(700));
    return out;
  }

  void detokenize() {
    const std::vector<int32_t> ids = tokens(12);
    Output<char> text(in_.pick(40));
    size_t count = 0;
    if (checked(kdelta_detokenize(engine(), in_.pick(16) == 0 ? nullptr : ids.data(), ids.size(),
                                  static_cast<int32_t>(in_.pick(2)), text.data(), text.capacity(), &count)))
      KDELTA_CHECK(count < 100000, count);
    text.expect_guard();
  }

  // Mostly what a request may be, now and then what none may.
  const kdelta_generate_options* options() {
    KDELTA_CHECK(kdelta_generate_options_init(engine(), &options_) == KDELTA_OK, kdelta_last_error());
    options_.max_tokens = static_cast<int64_t>(in_.pick(7));
    options_.seed = in_.byte();
    constexpr float odd[] = {0, 1, -1, 2, 1e30f, NAN, INFINITY};
    float* const fields[] = {&options_.temperature,
                             &options_.top_p,
                             &options_.min_p,
                             &options_.repetition_penalty,
                             &options_.presence_penalty,
                             &options_.frequency_penalty};
    if (in_.pick(3) == 0) *in_.of(fields) = in_.of(odd);
    switch (in_.pick(12)) {
      case 0:
        options_.top_k = static_cast<int32_t>(in_.pick(300)) - 2;
        break;
      case 1:
        options_.min_tokens = static_cast<int64_t>(in_.pick(9)) - 1;
        break;
      case 2:
        options_.max_tokens = in_.pick(2) == 0 ? INT64_MIN : -1;
        break;
      case 3:
        options_.struct_size = in_.byte();
        break;
      case 4:
        stop_ids_ = tokens(3);
        options_.stop_ids = stop_ids_.data();
        options_.stop_ids_count = stop_ids_.size() + (in_.pick(8) == 0 ? size_t{1} << 50 : 0);
        break;
      case 5:
        stop_text_ = in_.bytes(6);
        stop_ = in_.pick(8) == 0 ? nullptr : stop_text_.c_str();
        options_.stop = &stop_;
        options_.stop_count = 1;
        break;
      case 6:
        options_.ignore_eos = 1;
        options_.show_specials = -1;
        break;
      case 7:
        return nullptr;  // the model's own, which may be long: the callback ends it
      default:
        break;
    }
    return &options_;
  }

  static int32_t hear(const char* text, size_t bytes, const int32_t* tokens, size_t count, void* user) {
    KDELTA_CHECK((text != nullptr || bytes == 0) && (tokens != nullptr || count == 0), "");
    KDELTA_CHECK(is_utf8(std::string(text == nullptr ? "" : text, bytes)), "");
    size_t& left = *static_cast<size_t*>(user);
    left -= std::min(left, count);
    return left == 0 ? 1 : 0;
  }

  static void expect_end(const kdelta_end& end) {
    KDELTA_CHECK(
        end.struct_size == sizeof(end) && std::memchr(end.finish_reason, 0, sizeof(end.finish_reason)) != nullptr, "");
    KDELTA_CHECK(end.prompt_tokens >= 0 && end.cached_tokens >= 0 && end.tokens >= 0, "");
  }

  void start() {
    const std::vector<int32_t> prompt = tokens(10);
    const kdelta_generate_options* const given = options();
    kdelta_end end{.struct_size = in_.pick(16) == 0 ? 7 : sizeof(end)};
    size_t left = 1 + in_.pick(8);
    kdelta_bytes* state = nullptr;
    constexpr int64_t stops[] = {1, 2, 3, 0, -1, INT64_MIN, INT64_MAX};
    const bool whole = in_.pick(2) == 0;
    const bool done = checked(whole ? kdelta_generate(engine(), prompt.data(), prompt.size(), given, hear, &left, &end)
                                    : kdelta_start(engine(), prompt.data(), prompt.size(), given, in_.of(stops), hear,
                                                   &left, &end, in_.pick(16) == 0 ? nullptr : &state));
    KDELTA_CHECK(done || state == nullptr, "");
    if (done) expect_end(end);
    if (state == nullptr) return;
    KDELTA_CHECK(kdelta_bytes_data(state) != nullptr && kdelta_bytes_size(state) > 0, "");
    states_.push_back(state);
  }

  void resume() {
    if (states_.empty()) return;
    const kdelta_bytes* const from = states_[in_.pick(states_.size())];
    std::string bytes(static_cast<const char*>(kdelta_bytes_data(from)), kdelta_bytes_size(from));
    for (size_t times = in_.pick(3); times > 0; --times) {
      const size_t at = (in_.pick(65536) * 65536 + in_.pick(65536)) % bytes.size();
      if (in_.pick(4) == 0) bytes.resize(at + 1);
      bytes[std::min(at, bytes.size() - 1)] ^= static_cast<char>(in_.byte());
    }
    kdelta_end end{.struct_size = sizeof(end)};
    size_t left = 1 + in_.pick(8);
    if (checked(kdelta_resume(engine(), in_.pick(16) == 0 ? nullptr : bytes.data(), bytes.size(), hear, &left, &end)))
      expect_end(end);
  }

  void submit() {
    const std::vector<int32_t> prompt = tokens(10);
    const kdelta_generate_options* const given = options();
    kdelta_session* made = nullptr;
    if (checked(kdelta_submit(in_.pick(16) == 0 ? nullptr : service(), prompt.data(), prompt.size(), given,
                              in_.pick(16) == 0 ? nullptr : &made)))
      sessions_.push_back(made);
    else
      KDELTA_CHECK(made == nullptr, "");
  }

  void wait() {
    if (sessions_.empty()) return;
    kdelta_end end{.struct_size = in_.pick(16) == 0 ? 0 : sizeof(end)};
    size_t left = 1 + in_.pick(8);
    int32_t ended = 7;
    constexpr int64_t waits[] = {0, 1, 20, -5, INT64_MIN};
    if (checked(kdelta_session_wait(sessions_[in_.pick(sessions_.size())], in_.of(waits), hear, &left,
                                    in_.pick(16) == 0 ? nullptr : &ended, &end)))
      KDELTA_CHECK(ended == 0 || ended == 1, ended);
  }

  void refused_loads() {
    const std::string text(in_.bytes(12));
    Longer<kdelta_load_options> longer;
    kdelta_load_options& o = longer.fields;
    o.model = "models/none";
    o.threads = static_cast<int32_t>(in_.pick(5)) - 2;
    const char** const fields[] = {&o.model, &o.device, &o.dtype, &o.state_dtype, &o.isa, &o.force, &o.draft_model};
    *in_.of(fields) = in_.pick(8) == 0 ? nullptr : text.c_str();
    if (in_.pick(8) == 0) o.struct_size = in_.byte();
    kdelta_engine* made = nullptr;
    KDELTA_CHECK(!checked(kdelta_engine_load(in_.pick(16) == 0 ? nullptr : &o, &made)) && made == nullptr, text);
    KDELTA_CHECK(kdelta_engine_vocab_size(nullptr) == -1 && kdelta_engine_max_length(nullptr) == -1, "");
    kdelta_engine_destroy(nullptr);
    kdelta_service_destroy(nullptr);
    kdelta_session_destroy(nullptr);
    kdelta_bytes_destroy(nullptr);
    KDELTA_CHECK(kdelta_bytes_data(nullptr) == nullptr && kdelta_bytes_size(nullptr) == 0, "");
  }

  fuzz::Input& in_;
  Longer<kdelta_generate_options> longer_options_;
  kdelta_generate_options& options_ = longer_options_.fields;
  std::vector<int32_t> stop_ids_;
  std::string stop_text_;
  const char* stop_ = nullptr;
  std::vector<kdelta_session*> sessions_;
  std::vector<kdelta_bytes*> states_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  Session session(in);
  for (int calls = 0; calls < 12 && !in.empty(); ++calls) session.call();
  return 0;
}
