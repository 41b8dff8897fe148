// Any line of a file of requests, and any line of a conversation: read into a request that the engine takes or refuses,
// or refused with an Error whose message is UTF-8.
#include "kdelta/api/batch_request.h"
#include "kdelta/api/engine.h"
#include "kdelta/core/check.h"
#include "kdelta/io/fuzz_input.h"

namespace {

using namespace kdelta;

const Engine& engine() {
  static auto* const e = new Engine(Engine::load([] {
    LoadOptions o{.model = "models/tiny-k3"};
    o.threads = 1;
    o.max_length = 160;
    return o;
  }()));
  return *e;
}

template <class F>
void read(F f) {
  try {
    f();
  } catch (const Error& e) {
    KDELTA_CHECK(e.code() == ErrorCode::invalid_argument || e.code() == ErrorCode::bad_file, e.what());
    KDELTA_CHECK(is_utf8(e.what()), e.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  read([&] {
    const JsonSource source{.name = "line 1", .code = ErrorCode::invalid_argument};
    const BatchRequest r = read_request(engine(), JsonReader(parse_json(text, source), source), {});
    KDELTA_CHECK(r.choices >= 1);
    engine().check(r.task);
  });
  read([&] {
    for (const ChatMessage& m : Engine::read_messages(text, "messages")) KDELTA_CHECK(is_utf8(m.content));
  });
  return 0;
}
