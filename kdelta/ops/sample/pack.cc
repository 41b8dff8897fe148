// From SampleRow's to the arrays of sample_device.
#include <algorithm>
#include <bit>

#include "kdelta/ops/sample/variants.h"
#include "kdelta/ops/sample/work.h"

namespace kdelta {
namespace {

void require_room(int64_t needed, size_t capacity, const char* name) {
  if (needed > static_cast<int64_t>(capacity))
    fail(ErrorCode::invalid_argument, "pack_sample_rows: ", name, ": capacity ", capacity, ", at least ", needed,
         " needed");
}

// Copies `from` behind what is there and returns its place.
template <class T>
int64_t put(std::span<const T> from, std::span<T> to, int64_t& used, const char* name) {
  const int64_t place = used, n = static_cast<int64_t>(from.size());
  require_room(used + n, to.size(), name);
  std::copy(from.begin(), from.end(), to.begin() + place);
  used += n;
  return place;
}

// Bits of the ids that a word of the mask leaves out.
uint32_t left_out(const SampleRow& row, size_t word, int64_t vocabulary) {
  const int64_t n = vocabulary - 32 * static_cast<int64_t>(word);
  return ~row.allowed[word] & (n >= 32 ? 0xFFFFFFFFu : (uint32_t{1} << n) - 1);
}

}  // namespace

int64_t packed_bans(const SampleRow& row, int64_t vocabulary) {
  int64_t count = std::ssize(row.banned);
  for (size_t w = 0; w < row.allowed.size(); ++w) count += std::popcount(left_out(row, w, vocabulary));
  return count;
}

SampleDeviceCounts pack_sample_rows(std::span<const SampleRow> rows, int64_t vocabulary, std::span<const int64_t> kept,
                                    const SampleDevicePack& to) {
  if (rows.size() > to.rows.size())
    fail(ErrorCode::invalid_argument, "pack_sample_rows: rows: capacity ", to.rows.size(), ", ", rows.size(), " given");
  if (!kept.empty() && kept.size() != rows.size())
    fail(ErrorCode::invalid_argument, "pack_sample_rows: kept: ", kept.size(), " places, expected ", rows.size());
  SampleDeviceCounts used;
  for (size_t m = 0; m < rows.size(); ++m) {
    const SampleRow& row = rows[m];
    const SamplingParams& p = row.params;
    check_sample_row(row, vocabulary, static_cast<int64_t>(m));
    SampleDeviceRow d{.temperature = p.temperature,
                      .top_p = p.top_p,
                      .min_p = p.min_p,
                      .repetition_penalty = p.repetition_penalty,
                      .presence_penalty = p.presence_penalty,
                      .frequency_penalty = p.frequency_penalty,
                      .top_k = p.top_k,
                      .top_logprobs = row.top_logprobs,
                      .seed = p.seed,
                      .prompt = static_cast<int32_t>(row.prompt.size()),
                      .output = static_cast<int32_t>(row.output.size()),
                      .bias_count = static_cast<int32_t>(row.bias.size()),
                      .banned_count = static_cast<int32_t>(packed_bans(row, vocabulary)),
                      .live = 1};
    d.bias = static_cast<int32_t>(put(row.bias, to.bias, used.bias, "bias"));
    d.banned = static_cast<int32_t>(put(row.banned, to.banned, used.banned, "banned"));
    require_room(d.banned + d.banned_count, to.banned.size(), "banned");
    for (size_t w = 0; w < row.allowed.size(); ++w)
      for (uint32_t left = left_out(row, w, vocabulary); left != 0; left &= left - 1)
        to.banned[static_cast<size_t>(used.banned++)] = static_cast<int32_t>(32 * w) + std::countr_zero(left);
    if (!kept.empty() && kept[m] >= 0) {
      d.history = kept[m];
      d.kept = 1;
    } else if (penalises(p)) {
      d.history = put(row.prompt, to.history, used.history, "history");
      put(row.output, to.history, used.history, "history");
    }
    to.rows[m] = d;
  }
  std::fill(to.rows.begin() + static_cast<int64_t>(rows.size()), to.rows.end(), SampleDeviceRow{});
  return used;
}

}  // namespace kdelta
