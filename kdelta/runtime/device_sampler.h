// Draws tokens on a CUDA device: rows as sample() takes them go there in one copy, what was drawn comes back in
// another, and the logits stay where they are.
#pragma once

#include <span>
#include <vector>

#include "kdelta/core/buffer.h"
#include "kdelta/core/exec.h"
#include "kdelta/ops/sample/sample_device.h"

namespace kdelta::runtime {

class DeviceSampler {
 public:
  // Room for the rows of a step, with all tokens of `max_length` for each penalty, is not taken before it is needed.
  DeviceSampler(const Exec& ex, int64_t rows, int64_t vocabulary);

  // Bytes on the device, and of the host, of `rows` rows without penalties, biases and reports: what a usual step
  // takes.
  static int64_t bytes(int64_t rows);
  // Takes the scratch of a step of `rows` rows; ex plans.
  static void plan(const Exec& ex, int64_t rows, int64_t vocabulary);

  // Enqueues the draw of a row of logits [M, vocabulary] each. Throws what sample() throws.
  void enqueue(const View<const float>& logits, std::span<const SampleRow> rows);
  // What was drawn, when the queue has come so far.
  void collect(std::span<SampleResult> results) const;

 private:
  // One array of the call: where it begins in both buffers.
  struct Layout {
    int64_t rows, bias, banned, history, given;           // what is copied there; bytes of all of it
    int64_t token, logprob, top_token, top_logprob, end;  // what comes back
  };
  struct Sizes {
    int64_t rows = 0, bias = 0, banned = 0, history = 0, most = 0;
  };
  static Layout layout_of(const Sizes& sizes);
  static Sizes sizes_of(std::span<const SampleRow> rows, int64_t vocabulary);
  void reserve(int64_t bytes);
  SampleDeviceArgs args_of(const View<const float>& logits) const;

  const Exec& ex_;
  int64_t vocabulary_;
  Buffer device_;
  std::unique_ptr<HostBuffer> host_;
  Sizes sizes_;
  Layout layout_{};
  std::vector<int32_t> reported_;  // by row: tokens asked for, -1: none
};

}  // namespace kdelta::runtime
