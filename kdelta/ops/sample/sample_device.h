// sample (sample.h) with everything it reads and writes in the memory of the device: the same order of steps, the same
// draws and the same tokens, for a decode graph that the host never looks into. Letters: M rows of logits, B biases, Z
// banned ids, H tokens of histories, W most tokens reported for a row.
//
// A host that knows the rows fills the arrays with pack_sample_rows() and copies them. Where tokens stay on the device,
// every request has a place of its own in `history` and `append` puts the new token behind what lies there.
#pragma once

#include <span>

#include "kdelta/ops/sample/sample.h"

namespace kdelta {

// One row's parameters; the fields of SampleRow, spans as places in the arrays of the call.
struct SampleDeviceRow {
  float temperature = 1;
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int32_t top_k = 0;
  int32_t top_logprobs = -1;  // as in SampleRow; at most W tokens are reported
  uint64_t seed = 0;
  int64_t history = 0;     // place of the first token in `history`: the prompt's tokens, then the output's
  int32_t prompt = 0;      // how many tokens of the history are the prompt's
  int32_t output = 0;      // how many behind them were generated; also the draw index
  int32_t bias = 0;        // place of the first bias
  int32_t bias_count = 0;  // how many
  int32_t banned = 0;      // place of the first banned id
  int32_t banned_count = 0;
  int32_t live = 0;  // 0: a row of padding: its token is -1 and its logits are not looked at
  int32_t kept = 0;  // 1: the history lies on the device from step to step; see `append`
};
static_assert(sizeof(SampleDeviceRow) == 80);

struct SampleDeviceArgs {
  View<const float> logits;          // [M, vocabulary], row stride free; never written
  View<const SampleDeviceRow> rows;  // [M]
  View<const LogitBias> bias;        // [B]
  View<const int32_t> banned;        // [Z]
  View<int32_t> history;             // [H]; read where a penalty asks, written when `append`
  // The token of row m, if that is `kept` and the token not -1, goes to history[rows[m].history + prompt + output], as
  // far as there is such a place; after every row has been drawn, since a draft of the same request may lie there now.
  bool append = false;
  View<int32_t> token;      // [M], -1: padding, or no usable logit: the request must end
  View<float> logprob;      // [M], 0 where top_logprobs is below 0 or the token is -1
  View<int32_t> top_token;  // [M, W] best first; -1 behind the last
  View<float> top_logprob;  // [M, W]; 0 behind the last
};

// Throws Error(invalid_argument) for shapes, on the CPU also for the contents of rows as sample() does. On CUDA a row
// that names places outside the arrays, or an id outside the vocabulary where one is read, yields token -1 and raises
// Fault::token, nobody else touched; a parameter out of range yields some token or -1.
void sample_device(const Exec& ex, const SampleDeviceArgs& args);

// Host memory that is copied to the arrays of a call, pinned if the copy shall not wait.
struct SampleDevicePack {
  std::span<SampleDeviceRow> rows;  // capacities
  std::span<LogitBias> bias;
  std::span<int32_t> banned;
  std::span<int32_t> history;
};
// How much of each array holds something.
struct SampleDeviceCounts {
  int64_t bias = 0, banned = 0, history = 0;
};
// How many ids of a row pack_sample_rows() puts into `banned`: its own, and those that `allowed` leaves out.
int64_t packed_bans(const SampleRow& row, int64_t vocabulary);
// Fills `to` from rows; rows.size() may be below the capacity, the rest becomes padding. `kept`: empty, or for each row
// the place of its history where the device keeps it already (-1: pack it). A history is packed only where a penalty
// reads it; the drafts of a request share none of it. Throws Error(invalid_argument) as sample() does, and when a
// capacity does not suffice, naming it. Allocates nothing.
SampleDeviceCounts pack_sample_rows(std::span<const SampleRow> rows, int64_t vocabulary, std::span<const int64_t> kept,
                                    const SampleDevicePack& to);

}  // namespace kdelta
