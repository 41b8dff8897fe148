#include "kdelta/runtime/device_sampler.h"

#include <algorithm>

#include "kdelta/core/check.h"

namespace kdelta::runtime {
namespace {

bool penalises(const SamplingParams& p) {
  return p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0;
}

template <class T>
T* at(const void* base, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(const_cast<void*>(base)) + offset);
}

}  // namespace

DeviceSampler::Layout DeviceSampler::layout_of(const Sizes& s) {
  Layout l{};
  int64_t end = 0;
  const auto take = [&](int64_t count, int64_t bytes) {
    const int64_t begin = end;
    end = (begin + count * bytes + Arena::kAlign - 1) / Arena::kAlign * Arena::kAlign;
    return begin;
  };
  l.rows = take(s.rows, sizeof(SampleDeviceRow));
  l.bias = take(s.bias, sizeof(LogitBias));
  l.banned = take(s.banned, 4);
  l.history = take(s.history, 4);
  l.given = end;
  l.token = take(s.rows, 4);
  l.logprob = take(s.rows, 4);
  l.top_token = take(s.rows * s.most, 4);
  l.top_logprob = take(s.rows * s.most, 4);
  l.end = end;
  return l;
}

DeviceSampler::Sizes DeviceSampler::sizes_of(std::span<const SampleRow> rows, int64_t vocabulary) {
  Sizes s{.rows = std::ssize(rows)};
  for (const SampleRow& row : rows) {
    s.bias += std::ssize(row.bias);
    s.banned += packed_bans(row, vocabulary);
    if (penalises(row.params)) s.history += std::ssize(row.prompt) + std::ssize(row.output);
    s.most = std::max<int64_t>(s.most, row.top_logprobs);
  }
  return s;
}

int64_t DeviceSampler::bytes(int64_t rows) {
  return layout_of({.rows = rows}).end;
}

DeviceSampler::DeviceSampler(const Exec& ex, int64_t rows, int64_t vocabulary) : ex_(ex), vocabulary_(vocabulary) {
  reserve(bytes(rows));
  reported_.reserve(static_cast<size_t>(rows));
}

// Grows by doubling: longer histories and more reports than ever before are rare.
void DeviceSampler::reserve(int64_t bytes) {
  if (bytes <= device_.bytes()) return;
  bytes = std::max(bytes, 2 * device_.bytes());
  ex_.stream->synchronize();
  Buffer device(ex_.device, bytes);
  host_ = std::make_unique<HostBuffer>(ex_.device, bytes);
  device_ = std::move(device);
}

SampleDeviceArgs DeviceSampler::args_of(const View<const float>& logits) const {
  const void* base = device_.data();
  return {.logits = logits,
          .rows = {at<const SampleDeviceRow>(base, layout_.rows), {sizes_.rows}},
          .bias = {at<const LogitBias>(base, layout_.bias), {sizes_.bias}},
          .banned = {at<const int32_t>(base, layout_.banned), {sizes_.banned}},
          .history = {at<int32_t>(base, layout_.history), {sizes_.history}},
          .token = {at<int32_t>(base, layout_.token), {sizes_.rows}},
          .logprob = {at<float>(base, layout_.logprob), {sizes_.rows}},
          .top_token = {at<int32_t>(base, layout_.top_token), {sizes_.rows, sizes_.most}},
          .top_logprob = {at<float>(base, layout_.top_logprob), {sizes_.rows, sizes_.most}}};
}

void DeviceSampler::enqueue(const View<const float>& logits, std::span<const SampleRow> rows) {
  KDELTA_CHECK(logits.dim(0) == std::ssize(rows), logits.dim(0), " rows of logits, ", rows.size(), " to draw from");
  sizes_ = sizes_of(rows, vocabulary_);
  layout_ = layout_of(sizes_);
  reserve(layout_.end);
  const void* host = host_->data();
  const auto span = [&]<class T>(T*, int64_t offset, int64_t count) {
    return std::span<T>(at<T>(host, offset), static_cast<size_t>(count));
  };
  (void)pack_sample_rows(rows, vocabulary_, {},
                         {.rows = span(static_cast<SampleDeviceRow*>(nullptr), layout_.rows, sizes_.rows),
                          .bias = span(static_cast<LogitBias*>(nullptr), layout_.bias, sizes_.bias),
                          .banned = span(static_cast<int32_t*>(nullptr), layout_.banned, sizes_.banned),
                          .history = span(static_cast<int32_t*>(nullptr), layout_.history, sizes_.history)});
  reported_.clear();
  for (const SampleRow& row : rows) reported_.push_back(row.top_logprobs);
  copy_async(*ex_.stream, device_.data(), host, layout_.given);
  sample_device(ex_, args_of(logits));
  copy_async(*ex_.stream, at<char>(host, layout_.token), at<char>(device_.data(), layout_.token),
             layout_.end - layout_.token);
}

void DeviceSampler::plan(const Exec& ex, int64_t rows, int64_t vocabulary) {
  static int64_t nowhere = 0;
  float* f = reinterpret_cast<float*>(&nowhere);
  int32_t* i = reinterpret_cast<int32_t*>(&nowhere);
  sample_device(ex, {.logits = {f, {rows, vocabulary}},
                     .rows = {reinterpret_cast<const SampleDeviceRow*>(&nowhere), {rows}},
                     .bias = {reinterpret_cast<const LogitBias*>(&nowhere), {0}},
                     .banned = {i, {0}},
                     .history = {i, {0}},
                     .token = {i, {rows}},
                     .logprob = {f, {rows}},
                     .top_token = {i, {rows, vocabulary}},
                     .top_logprob = {f, {rows, vocabulary}}});
}

void DeviceSampler::collect(std::span<SampleResult> results) const {
  KDELTA_CHECK(std::ssize(results) == sizes_.rows);
  const void* host = host_->data();
  for (int64_t m = 0; m < sizes_.rows; ++m) {
    SampleResult& r = results[static_cast<size_t>(m)];
    r.token = at<const int32_t>(host, layout_.token)[m];
    r.logprob = at<const float>(host, layout_.logprob)[m];
    r.top.clear();
    for (int64_t i = 0; i < std::min<int64_t>(sizes_.most, reported_[static_cast<size_t>(m)]); ++i) {
      const int32_t token = at<const int32_t>(host, layout_.top_token)[m * sizes_.most + i];
      if (token < 0) break;
      r.top.push_back({token, at<const float>(host, layout_.top_logprob)[m * sizes_.most + i]});
    }
  }
}

}  // namespace kdelta::runtime
