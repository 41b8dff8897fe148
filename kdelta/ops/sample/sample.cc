#include "kdelta/ops/sample/sample.h"

#include <cmath>
#include <limits>

#include "kdelta/ops/sample/variants.h"

namespace kdelta {
namespace {

constexpr SampleVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) {#name, needs, refuse, scratch, KDELTA_RUN(needs, sample_##name)},
#include "kdelta/ops/sample/variants.inc"
#undef KDELTA_VARIANT
};

// Built only when something is refused: a good row costs no string.
std::string at(int64_t row) {
  return row < 0 ? "sampling: " : str("sample: row ", row, ": ");
}

void check_params(const SamplingParams& p, int64_t row) {
  auto refuse = [&](const char* field, double value, const char* expected) {
    fail(ErrorCode::invalid_argument, at(row), field, ": ", value, ", expected ", expected);
  };
  if (!(p.temperature >= 0) || std::isinf(p.temperature)) refuse("temperature", p.temperature, ">= 0 and finite");
  if (!(p.top_p >= 0 && p.top_p <= 1)) refuse("top_p", p.top_p, "0..1");
  if (!(p.min_p >= 0 && p.min_p <= 1)) refuse("min_p", p.min_p, "0..1");
  if (!(p.repetition_penalty > 0) || std::isinf(p.repetition_penalty))
    refuse("repetition_penalty", p.repetition_penalty, "> 0 and finite");
  if (!std::isfinite(p.presence_penalty)) refuse("presence_penalty", p.presence_penalty, "a finite number");
  if (!std::isfinite(p.frequency_penalty)) refuse("frequency_penalty", p.frequency_penalty, "a finite number");
}

void check_ids(std::span<const int32_t> ids, int64_t vocabulary, int64_t row, const char* field) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocabulary)
      fail(ErrorCode::invalid_argument, at(row), field, "[", i, "]: ", ids[i], ", expected 0..", vocabulary - 1);
}

}  // namespace

void check_sample_row(const SampleRow& row, int64_t vocabulary, int64_t m) {
  check_params(row.params, m);
  for (size_t i = 0; i < row.bias.size(); ++i) {
    const LogitBias& b = row.bias[i];
    if (b.token < 0 || b.token >= vocabulary)
      fail(ErrorCode::invalid_argument, at(m), "bias[", i, "].token: ", b.token, ", expected 0..", vocabulary - 1);
    if (std::isnan(b.bias) || (std::isinf(b.bias) && b.bias > 0))
      fail(ErrorCode::invalid_argument, at(m), "bias[", i, "].bias: ", b.bias,
           ", expected a finite number or -infinity");
  }
  check_ids(row.banned, vocabulary, m, "banned");
  if (!row.allowed.empty() && std::ssize(row.allowed) != mask_words(vocabulary))
    fail(ErrorCode::invalid_argument, at(m), "allowed: ", row.allowed.size(), " words, expected ",
         mask_words(vocabulary), " or none");
  // Only what a penalty will read: a long prompt is not walked once per token for nothing.
  if (row.params.repetition_penalty != 1) check_ids(row.prompt, vocabulary, m, "prompt");
  if (row.params.repetition_penalty != 1 || row.params.presence_penalty != 0 || row.params.frequency_penalty != 0)
    check_ids(row.output, vocabulary, m, "output");
}

namespace {

void check(const SampleArgs& a) {
  if (a.logits.shape.rank != 2 || a.logits.dim(1) < 1)
    fail(ErrorCode::invalid_argument, "sample: logits: shape ", to_string(a.logits.shape),
         ", expected [M, vocabulary]");
  const int64_t M = a.logits.dim(0);
  expect_view(a.logits, {M, a.logits.dim(1)}, "sample: logits");
  if (a.logits.dim(1) > std::numeric_limits<int32_t>::max())
    fail(ErrorCode::invalid_argument, "sample: logits: vocabulary ", a.logits.dim(1), " passes 32-bit token ids");
  if (static_cast<int64_t>(a.rows.size()) != M)
    fail(ErrorCode::invalid_argument, "sample: rows: ", a.rows.size(), " of them, expected ", M);
  if (static_cast<int64_t>(a.results.size()) != M)
    fail(ErrorCode::invalid_argument, "sample: results: ", a.results.size(), " of them, expected ", M);
  for (int64_t m = 0; m < M; ++m) check_sample_row(a.rows[static_cast<size_t>(m)], a.logits.dim(1), m);
}

}  // namespace

std::span<const SampleVariant> sample_variants() {
  return kVariants;
}

void check_sampling_params(const SamplingParams& params) {
  check_params(params, -1);
}

void sample(const Exec& ex, const SampleArgs& args) {
  check(args);
  const SampleDesc desc{target_of(ex), args.logits.dim(0), args.logits.dim(1)};
  const double n = static_cast<double>(args.logits.shape.numel());
  run_op(ex, "sample", sample_variants(), args, desc, Cost{.bytes = 4 * n, .flops = n});
}

}  // namespace kdelta
