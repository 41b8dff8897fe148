// Any bytes as the file of a request's state, any JSON in a frame that is whole, and any state as a file: refused with
// an Error whose message is UTF-8, or read, written and read back as the same; laid out the other way, cut into shards,
// joined again and given to an engine, it is refused or served, and nothing but the request is at stake.
#include <cmath>
#include <cstring>

#include "kdelta/api/state_file.h"
#include "kdelta/core/check.h"
#include "kdelta/model/fuzz_checkpoint.h"
#include "kdelta/model/load.h"
#include "kdelta/runtime/engine.h"

namespace {

using namespace kdelta;
using runtime::StateImage;
using runtime::StatePart;
using runtime::WindowLayout;

// f(), or false for an Error of one of the two kinds that bad states have.
template <class F>
bool accepted(F f) {
  try {
    f();
    return true;
  } catch (const Error& e) {
    KDELTA_CHECK(e.code() == ErrorCode::bad_file || e.code() == ErrorCode::invalid_argument ||
                     e.code() == ErrorCode::out_of_memory,
                 e.what());
    KDELTA_CHECK(is_utf8(e.what()), e.what());
    return false;
  }
}

runtime::Engine& engine() {
  static const LoadedModel model = [] {
    fuzz::Input none(nullptr, 0);
    const fuzz::ChangedCheckpoint unchanged(none);
    return load_model(fuzz::ChangedCheckpoint::directory(), LoadFormat::dummy);
  }();
  static runtime::Engine e = [] {
    runtime::EngineConfig c;
    c.model_id = 7;
    c.max_length = 64;
    c.token_budget = 64;
    c.options.threads = 1;
    c.options.isa = IsaLevel::portable;
    return runtime::Engine(*model.model, c);
  }();
  return e;
}

// What an engine of this model writes after four tokens.
const StateImage& valid() {
  static const StateImage image = [] {
    const runtime::RequestId id = engine().submit({1, 2, 3}, {.max_tokens = 5});
    for (int i = 0; i < 2; ++i) engine().step([](const runtime::TokenEvent&) {});
    StateImage s = engine().export_state(id);
    engine().finish(id, runtime::FinishReason::cancelled);
    return s;
  }();
  return image;
}

void serve(const StateImage& image) {
  runtime::RequestId id = 0;
  if (!accepted([&] { id = engine().import_state(image); })) return;
  for (int i = 0; i < 3 && engine().step([](const runtime::TokenEvent&) {}); ++i) continue;
  engine().finish(id, runtime::FinishReason::cancelled);
}

// A state that a file may hold.
void use(const StateImage& image) {
  const std::vector<char> bytes = encode_state(image);
  KDELTA_CHECK(encode_state(decode_state(bytes, "again")) == bytes);
  const StateImage by_token = with_layout(image, WindowLayout::token_major);
  const StateImage by_channel = with_layout(image, WindowLayout::channel_major);
  KDELTA_CHECK(encode_state(with_layout(by_channel, WindowLayout::token_major)) == encode_state(by_token));
  for (const int n : {1, 2, 3}) {
    std::vector<StateImage> shards;
    if (accepted([&] { shards = split_state(image, n); }))
      KDELTA_CHECK(encode_state(join_state(shards)) == encode_state(by_token));
  }
  serve(image);
}

void read(std::span<const char> bytes) {
  StateImage image;
  if (accepted([&] { image = decode_state(bytes, "fuzz"); })) use(image);
}

// Text and data in a frame whose lengths and checksum fit.
std::vector<char> framed(std::string_view text, std::string_view data) {
  std::vector<char> out(8 + 4 + 4 + 8);
  std::memcpy(out.data(), "kdstate\n", 8);
  const auto version = kStateVersion, length = static_cast<uint32_t>(text.size());
  const uint64_t bytes = data.size();
  std::memcpy(&out[8], &version, 4);
  std::memcpy(&out[12], &length, 4);
  std::memcpy(&out[16], &bytes, 8);
  out.insert(out.end(), text.begin(), text.end());
  out.insert(out.end(), data.begin(), data.end());
  const uint64_t sum = state_checksum(out);
  const size_t end = out.size();
  out.resize(end + 8);
  std::memcpy(&out[end], &sum, 8);
  return out;
}

// The valid state's JSON with members at any depth changed.
void change_text(fuzz::Input& in) {
  const std::vector<char> bytes = encode_state(valid());
  uint32_t length = 0;
  std::memcpy(&length, &bytes[12], 4);
  Json text = parse_json({bytes.data() + 24, length}, {"valid"});
  const std::string_view data(bytes.data() + 24 + length, bytes.size() - 24 - length - 8);
  for (int i = 0; i < 4 && !in.empty(); ++i) {
    Json* at = &text;
    while (in.pick(4) != 0) {
      if (at->kind() == Json::Kind::object && !at->object().empty())
        at = &at->object()[in.pick(at->object().size())].value;
      else if (at->kind() == Json::Kind::array && !at->array().empty())
        at = &at->array()[in.pick(at->array().size())];
      else
        break;
    }
    if (at->kind() == Json::Kind::array && in.pick(2) == 0 && !at->array().empty())
      at->array().pop_back();
    else
      *at = fuzz::odd_value(in);
  }
  read(framed(json_text(text), data.substr(0, data.size() - std::min(data.size(), in.pick(3)))));
}

// Fields of the state itself.
void change_image(fuzz::Input& in) {
  StateImage image = valid();
  for (int i = 0; i < 6 && !in.empty(); ++i) {
    StatePart& p = image.parts[in.pick(image.parts.size())];
    switch (in.pick(10)) {
      case 0:
        image.shards = static_cast<int>(in.pick(4)) + 1;
        image.shard = static_cast<int>(in.pick(static_cast<size_t>(image.shards)));
        break;
      case 1:
        p.layout = WindowLayout::channel_major;
        break;
      case 2:
        p.spec.shape.rank = 1 + static_cast<int>(in.pick(4));
        break;
      case 3:
        p.spec.shape.dim[in.pick(4)] = static_cast<int64_t>(in.pick(9));
        break;
      case 4:
        p.spec.rule = in.pick(2) == 0 ? SlotRule::window : SlotRule::column;
        p.spec.kind = in.pick(2) == 0 ? StateKind::page : StateKind::slot;
        break;
      case 5:
        p.spec.shard_axis = static_cast<int>(in.pick(static_cast<size_t>(p.spec.shape.rank) + 1)) - 1;
        p.spec.shard_groups = 1 + static_cast<int>(in.pick(1 << 12));
        break;
      case 6:
        image.output.assign(in.pick(6), static_cast<int32_t>(in.pick(9)));
        image.computed = static_cast<int64_t>(in.pick(image.prompt.size() + image.output.size() + 1));
        break;
      case 7:
        image.options.sampling.temperature = in.pick(2) == 0 ? INFINITY : 1.0f;
        image.options.max_tokens = static_cast<int64_t>(in.pick(70)) - 2;
        image.options.bias.push_back({static_cast<int32_t>(in.pick(12)), in.pick(2) == 0 ? -INFINITY : 3.0f});
        break;
      case 8:
        if (!p.data.empty()) p.data[in.pick(p.data.size())] = static_cast<char>(in.byte());
        break;
      default:
        image.parts.push_back(StatePart(p));
    }
  }
  for (StatePart& p : image.parts) {
    p.spec.shard_axis = std::min(p.spec.shard_axis, p.spec.shape.rank - 1);
    p.data.resize(static_cast<size_t>(p.spec.bytes()));
  }
  image.computed = std::min<int64_t>(image.computed, std::ssize(image.prompt) + std::ssize(image.output));
  if (std::isinf(image.options.sampling.temperature)) return serve(image);  // no JSON says it
  if (accepted([&] { (void)decode_state(encode_state(image), "changed"); })) use(image);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  switch (in.pick(4)) {
    case 0: {
      const std::string_view rest = in.rest();
      read({rest.data(), rest.size()});
      return 0;
    }
    case 1: {
      const std::string_view body = in.bytes(64), text = in.rest();
      read(framed(text, body));
      return 0;
    }
    case 2:
      change_text(in);
      return 0;
    default:
      change_image(in);
      return 0;
  }
}
