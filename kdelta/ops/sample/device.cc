#include <algorithm>
#include <limits>

#include "kdelta/ops/sample/variants.h"
#include "kdelta/ops/sample/work.h"

namespace kdelta {
namespace {

constexpr SampleDeviceVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  {#name, needs, refuse, scratch, KDELTA_RUN(needs, sample_device_##name)},
#include "kdelta/ops/sample/device_variants.inc"
#undef KDELTA_VARIANT
};

void check(const SampleDeviceArgs& a) {
  if (a.logits.shape.rank != 2 || a.logits.dim(1) < 1 || a.logits.dim(1) > std::numeric_limits<int32_t>::max())
    fail(ErrorCode::invalid_argument, "sample_device: logits: shape ", to_string(a.logits.shape),
         ", expected [M, vocabulary]");
  const int64_t M = a.logits.dim(0);
  expect_view(a.logits, {M, a.logits.dim(1)}, "sample_device: logits");
  expect_view(a.rows, {M}, "sample_device: rows");
  expect_view(a.bias, {a.bias.dim(0)}, "sample_device: bias");
  expect_view(a.banned, {a.banned.dim(0)}, "sample_device: banned");
  expect_view(a.history, {a.history.dim(0)}, "sample_device: history");
  expect_view(a.token, {M}, "sample_device: token");
  expect_view(a.logprob, {M}, "sample_device: logprob");
  if (a.top_token.shape.rank != 2)
    fail(ErrorCode::invalid_argument, "sample_device: top_token: shape ", to_string(a.top_token.shape),
         ", expected [M, W]");
  expect_view(a.top_token, {M, a.top_token.dim(1)}, "sample_device: top_token");
  expect_view(a.top_logprob, {M, a.top_token.dim(1)}, "sample_device: top_logprob");
}

template <class T>
std::span<const T> part(const View<T>& v, int64_t place, int64_t count, int64_t m, const char* name) {
  if (place < 0 || count < 0 || place + count > v.dim(0))
    fail(ErrorCode::invalid_argument, "sample_device: row ", m, ": ", name, ": ", count, " from ", place,
         " on, the array holds ", v.dim(0));
  return std::span<const T>(v.data + place, static_cast<size_t>(count));
}
template <class T>
std::span<const T> part(const View<const T>& v, int64_t place, int64_t count, int64_t m, const char* name) {
  return part(View<T>(const_cast<T*>(v.data), v.shape), place, count, m, name);
}

SampleRow row_of(const SampleDeviceArgs& a, int64_t m) {
  const SampleDeviceRow& d = a.rows.data[m];
  SampleRow row{.params = {.temperature = d.temperature,
                           .top_k = d.top_k,
                           .top_p = d.top_p,
                           .min_p = d.min_p,
                           .repetition_penalty = d.repetition_penalty,
                           .presence_penalty = d.presence_penalty,
                           .frequency_penalty = d.frequency_penalty,
                           .seed = d.seed},
                .bias = part(a.bias, d.bias, d.bias_count, m, "bias"),
                .banned = part(a.banned, d.banned, d.banned_count, m, "banned"),
                .top_logprobs = static_cast<int32_t>(std::min<int64_t>(d.top_logprobs, a.top_token.dim(1)))};
  if (penalises(row.params)) {
    row.prompt = part(a.history, d.history, d.prompt, m, "history");
    row.output = part(a.history, d.history + d.prompt, d.output, m, "history");
  } else {  // the number of draws alone
    row.output = std::span<const int32_t>(static_cast<const int32_t*>(nullptr), static_cast<size_t>(d.output));
  }
  return row;
}

}  // namespace

void sample_device_reference(const Exec& ex, const SampleDeviceArgs& a, const SampleDeviceDesc& d, void*) {
  for (int64_t m = 0; m < d.rows; ++m)
    if (a.rows.data[m].live != 0) check_sample_row(row_of(a, m), d.vocabulary, m);
  for (int64_t m = 0; m < d.rows; ++m) {
    SampleResult result;
    if (a.rows.data[m].live != 0) {
      const SampleRow row = row_of(a, m);
      const View<const float> logits(a.logits.at(m), {1, d.vocabulary});
      sample_reference(ex, {.logits = logits, .rows = {&row, 1}, .results = {&result, 1}}, {d.target, 1, d.vocabulary},
                       nullptr);
    }
    a.token.data[m] = result.token;
    a.logprob.data[m] = result.logprob;
    for (int64_t i = 0; i < d.most; ++i) {
      const bool there = i < static_cast<int64_t>(result.top.size());
      *a.top_token.at(m, i) = there ? result.top[static_cast<size_t>(i)].token : -1;
      *a.top_logprob.at(m, i) = there ? result.top[static_cast<size_t>(i)].logprob : 0;
    }
  }
  for (int64_t m = 0; a.append && m < d.rows; ++m) {
    const SampleDeviceRow& row = a.rows.data[m];
    const int64_t place = row.history + row.prompt + row.output;
    if (row.kept != 0 && a.token.data[m] >= 0 && place >= 0 && place < a.history.dim(0))
      a.history.data[place] = a.token.data[m];
  }
}

std::span<const SampleDeviceVariant> sample_device_variants() {
  return kVariants;
}

void sample_device(const Exec& ex, const SampleDeviceArgs& args) {
  check(args);
  const SampleDeviceDesc desc{target_of(ex), args.logits.dim(0), args.logits.dim(1), args.top_token.dim(1)};
  const double n = static_cast<double>(args.logits.shape.numel());
  run_op(ex, "sample_device", sample_device_variants(), args, desc, Cost{.bytes = 4 * n, .flops = n});
}

}  // namespace kdelta
