// What a layer asks for, as plain rows: the weights it needs and the state it keeps. The model finds and binds the
// weights, the runtime sizes and owns the state; nothing is looked up by name during a forward pass.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kdelta/core/matrix.h"

namespace kdelta {

enum class WeightKind : uint8_t {
  matrix,       // [rows, cols], any stored format, stays in the file: target Matrix
  product,      // names[0] [rows, inner] times names[1] [inner, cols] in fp32, rounded once: target Matrix
  vector,       // any shape of `shape` elements in all, converted to fp32: target View<const float> of shape [elements]
  head_scalar,  // like vector, but the file may pad it: the first `shape` elements are used (A_log)
  conv_taps,  // parts of [C, 1, W] or [C, W], stacked along C, fp32, stored transposed: target View<const float> [W, C]
  score_row,  // elementwise product of two vectors (attention-residual norm weight and projection row), fp32
};

// Which part of a weight a rank of a sharded model holds; ranks hold equal parts, in order.
enum class ShardRule : uint8_t {
  whole,    // all of it
  rows,     // of its rows: outputs, heads, elements of a vector; of a product: of its first factor; of conv_taps: of
            // every stacked part
  columns,  // of its columns: inputs
};

struct WeightSpec {
  std::vector<std::string> names;  // relative to the layer, without the suffix
  WeightKind kind = WeightKind::matrix;
  Shape shape;        // of the target, which is a rank's part: matrix [rows, cols]; vector [n]; taps [C, W]
  int64_t inner = 0;  // product only
  std::string suffix = ".weight";  // "" for A_log and other bare names
  ShardRule shard = ShardRule::whole;
  // conv_taps: all parts may come as one tensor of this name instead, [C, 1, W] or [C, W], or as it is kept, [W, C].
  // Where both come, the one tensor counts.
  std::string merged = {};
  // A matrix that other matrices are multiplied by, never an activation (kv_b, absorbed into the queries): what a
  // checkpoint says about the precision of its inputs says nothing about it.
  bool absorbed = false;
  // A matrix whose rows are taken out as they are (the embedding): stored in f32 or bf16 alone.
  bool looked_up = false;
  // Weights of a layer with the same group are stored in the same precision and take their inputs in one; "": free.
  std::string group = {};
  // The group is multiplied in one call, which takes one dtype: floating-point types may not mix either.
  bool one_call = false;
  std::variant<Matrix*, View<const float>*> target;
};

enum class StateKind : uint8_t {
  slot,  // one array per state slot: recurrent state, convolution window
  page,  // one array per page of tokens: latent cache
};

// Where in its slots a sequence's state begins, when its last step kept `accepted` (1..columns) of its tokens.
enum class SlotRule : uint8_t {
  column,  // every draft column has a slot of its own; the state is in the slot of column accepted - 1
  window,  // column 0 alone is used; the state begins at row accepted - 1 of the first axis
  replay,  // column 0 alone is used; it holds the state of accepted = 1, and the first accepted - 1 rows of the layer's
           // `record` states lead from there to where the state begins (Mixer::replay, or the next step itself)
  record,  // column 0 alone is used; row i of the first axis is what draft i of the last step did to the layer's
           // `replay` states. Nothing of it is read when accepted = 1: a settled state has no records
};

// How states that cannot be cut are kept while drafts are verified: SlotRule::column, or replay and record.
enum class DraftStates : uint8_t { slots, records };

struct StateSpec {
  std::string name;
  StateKind kind = StateKind::slot;
  DType dtype = DType::f32;
  Shape shape;                       // of one slot or one page; the first axis of a page is its tokens
  SlotRule rule = SlotRule::column;  // slots only
  // Ranks of a sharded model hold equal parts of this axis, cut within each of its groups (q | k | v); -1: all of it.
  int shard_axis = -1, shard_groups = 1;
  int64_t bytes() const { return shape.numel() * dtype_bytes(dtype); }
};

// What the runtime fixes before any layer can state its states.
struct StateParams {
  DType activation = DType::bf16;  // of convolution windows and latents
  DType recurrent = DType::f32;    // of recurrent states
  int64_t columns = 1;             // 1 + the most drafts a verification step may carry
  DraftStates draft_states = DraftStates::slots;
  int64_t page_tokens = 64;
};

}  // namespace kdelta
