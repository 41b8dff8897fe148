// The scalar parts of the sampling kernels: what touches few tokens, and the choice of the cut among candidates.
#pragma once

#include "kdelta/ops/sample/variants.h"

namespace kdelta {

struct Candidate {
  float value;
  int32_t id;
};

// Tokens worse than (value, id) in the order "larger value, then lower id" are out.
struct Cutoff {
  float value = -__builtin_inff();
  int32_t id = 0;
  bool everything() const { return value == -__builtin_inff(); }
};

// Vector passes run block by block; a block's exponentials fit the stack and its sum is one fp32 reduction.
inline constexpr int64_t kSampleBlock = 4096;

// Scratch of one row in flight. `count` shares memory with the candidates: penalties are over before the first is
// collected.
struct SampleWork {
  float* x;               // [vocabulary] processed logits
  Candidate* candidates;  // [vocabulary]
  int32_t* count;         // [vocabulary]
  double* block_sum;      // [blocks]
};
SampleWork sample_work(const SampleDesc& d, void* scratch, int64_t index);
// Rows in flight at once: a row's scratch is given out by rank, or by row when there are fewer rows than threads.
int64_t rows_in_flight(const SampleDesc& d);

// These two hold the library code that an instruction-set file must not instantiate.
void reset(SampleResult& result);
// c[0, n), sorted here, and the chosen logit as log-probabilities; total = sum of exp(logit - best).
void report_logprobs(Candidate* c, int64_t n, float chosen, float best, double total, SampleResult& result);

bool penalises(const SamplingParams& p);
bool is_processed(const SampleRow& row);
// Bias, bans and penalties on a copy of the logits. Every value stays finite or -infinity.
void process_logits(const SampleRow& row, float* x, int64_t vocabulary, int32_t* count);

// The k best of n to the front, unordered; returns the worst of them. 1 <= k <= n.
Candidate select_best(Candidate* c, int64_t n, int64_t k);
// The last token of the shortest best-first list whose probabilities reach `wanted`, a sum of exp((value - best) /
// temperature). When all n do not reach it, the worst of them.
Candidate select_mass(Candidate* c, int64_t n, float best, float temperature, double wanted);
// The least float v with exp((v - best) / temperature) >= p.
float value_of_probability(float best, float temperature, double p);

}  // namespace kdelta
