// A request's complete state outside the engine: what it was asked, what it answered, and the recurrent states, windows
// and latents that its tokens left. As bytes it can be kept in a file or sent to another process; there the request
// goes on with one decode row, nothing is computed twice. Also the form in which prefill is separated from decode: a
// state can be cut into shards of heads and joined again for another number of them. Its form as bytes is
// api/state_file.h.
//
// An image of nothing but computed prompt tokens is a prefix: no request, but what later ones may start behind.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kdelta/layers/spec.h"
#include "kdelta/runtime/request.h"

namespace kdelta::runtime {

inline bool is_window(const StateSpec& s) {
  return s.kind == StateKind::slot && s.rule == SlotRule::window;
}

// How the rows of a window lie in a part: token by token, or channel by channel (as other engines keep them).
enum class WindowLayout : uint8_t { token_major, channel_major };

struct StatePart {
  int layer = 0;
  StateSpec spec;  // shape: of the settled slot; of a page kind [computed tokens, ...]
  WindowLayout layout = WindowLayout::token_major;
  std::vector<char> data;
};

struct StateImage {
  uint64_t model = 0;  // EngineConfig::model_id of the engine that wrote it
  // EngineConfig::arithmetic of that engine: under another one the state means the same, in other last bits.
  std::string arithmetic = {};
  int shard = 0, shards = 1;
  int64_t grid = 64;  // the prompt was and is cut at multiples of this
  std::vector<int32_t> prompt, output;
  int64_t computed = 0;
  RequestOptions options;
  std::vector<StatePart> parts;  // layer by layer, in the order of the StateSpecs
};

// The state as each of `shards` ranks would hold it, and back. Throws Error(invalid_argument) when heads do not divide,
// or shards are missing, doubled, or of different requests.
std::vector<StateImage> split_state(const StateImage& whole, int shards);
StateImage join_state(std::span<const StateImage> shards);
// Every window in that layout.
StateImage with_layout(StateImage image, WindowLayout layout);

}  // namespace kdelta::runtime
