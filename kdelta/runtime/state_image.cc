#include "kdelta/runtime/state_image.h"

#include <algorithm>
#include <cstring>

#include "kdelta/core/check.h"

namespace kdelta::runtime {
namespace {

int64_t outer_of(const StatePart& p, int axis) {
  int64_t n = 1;
  for (int i = 0; i < axis; ++i) n *= p.spec.shape[i];
  return n;
}

int64_t inner_bytes(const StatePart& p, int axis) {
  int64_t n = dtype_bytes(p.spec.dtype);
  for (int i = axis + 1; i < p.spec.shape.rank; ++i) n *= p.spec.shape[i];
  return n;
}

// The runs of bytes of rank `shard` of `shards` within the whole part, in order: f(offset in the whole, offset in the
// shard, bytes). Each of the axis' groups is cut for itself (q | k | v).
template <class F>
void each_run(const StatePart& whole, int shard, int shards, const F& f) {
  const int axis = whole.spec.shard_axis;
  const int64_t groups = whole.spec.shard_groups, group = whole.spec.shape[axis] / groups;
  const int64_t inner = inner_bytes(whole, axis), run = group / shards * inner;
  if (run == 0) return;
  int64_t at = 0;
  for (int64_t o = 0; o < outer_of(whole, axis) * groups; ++o, at += run)
    f((o * group + shard * (group / shards)) * inner, at, run);
}

void transpose(StatePart& p, WindowLayout to) {
  if (!is_window(p.spec) || p.layout == to) return;
  KDELTA_CHECK(p.spec.shape.rank == 2);
  p.layout = to;
  if (p.data.empty()) return;
  const int64_t rows = p.spec.shape[0], columns = p.spec.shape[1], e = dtype_bytes(p.spec.dtype);
  std::vector<char> out(p.data.size());
  const bool token_to_channel = to == WindowLayout::channel_major;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t token = (r * columns + c) * e, channel = (c * rows + r) * e;
      std::memcpy(&out[static_cast<size_t>(token_to_channel ? channel : token)],
                  &p.data[static_cast<size_t>(token_to_channel ? token : channel)], static_cast<size_t>(e));
    }
  p.data = std::move(out);
}

// Parts of one state; how a window lies may differ.
bool same_part(const StatePart& a, const StatePart& b) {
  const StateSpec &x = a.spec, &y = b.spec;
  return a.layer == b.layer && x.name == y.name && x.kind == y.kind && x.dtype == y.dtype && x.shape == y.shape &&
         is_window(x) == is_window(y) && x.shard_axis == y.shard_axis && x.shard_groups == y.shard_groups;
}

bool same_request(const StateImage& a, const StateImage& b) {
  return a.model == b.model && a.shards == b.shards && a.grid == b.grid && a.prompt == b.prompt &&
         a.output == b.output && a.computed == b.computed &&
         std::equal(a.parts.begin(), a.parts.end(), b.parts.begin(), b.parts.end(), same_part);
}

}  // namespace

StateImage with_layout(StateImage image, WindowLayout layout) {
  for (StatePart& p : image.parts) transpose(p, layout);
  return image;
}

std::vector<StateImage> split_state(const StateImage& given, int shards) {
  if (given.shards != 1 || shards < 1)
    fail(ErrorCode::invalid_argument, "shards: ", shards, " of a state that is shard ", given.shard, " of ",
         given.shards, ", expected a whole state and at least 1");
  const StateImage whole = with_layout(given, WindowLayout::token_major);
  std::vector<StateImage> all(static_cast<size_t>(shards), whole);
  for (int s = 0; s < shards; ++s) {
    StateImage& image = all[static_cast<size_t>(s)];
    image.shard = s;
    image.shards = shards;
    for (size_t i = 0; i < whole.parts.size(); ++i) {
      const StatePart& from = whole.parts[i];
      StatePart& to = image.parts[i];
      if (from.spec.shard_axis < 0) continue;  // every rank holds it
      int64_t& length = to.spec.shape.dim[static_cast<size_t>(from.spec.shard_axis)];
      if (length % (int64_t{shards} * from.spec.shard_groups) != 0)
        fail(ErrorCode::invalid_argument, "shards: ", shards, " do not divide ", from.spec.name, " of layer ",
             from.layer, ", ", to_string(from.spec.shape));
      length /= shards;
      to.data.resize(from.data.size() / static_cast<size_t>(shards));
      each_run(from, s, shards, [&](int64_t source, int64_t target, int64_t bytes) {
        std::memcpy(to.data.data() + target, from.data.data() + source, static_cast<size_t>(bytes));
      });
    }
  }
  return all;
}

StateImage join_state(std::span<const StateImage> shards) {
  const auto refuse = [](const std::string& what) { fail(ErrorCode::invalid_argument, "shards: ", what); };
  if (shards.empty()) refuse("none given");
  std::vector<const StateImage*> order(shards.size(), nullptr);
  for (const StateImage& s : shards) {
    if (s.shards != static_cast<int>(shards.size()))
      refuse(str(shards.size(), " given, one says there are ", s.shards));
    if (s.shard < 0 || s.shard >= s.shards || order[static_cast<size_t>(s.shard)] != nullptr)
      refuse(str("number ", s.shard, " twice or out of range"));
    if (!same_request(s, shards[0])) refuse("of different requests");
    order[static_cast<size_t>(s.shard)] = &s;
  }
  StateImage whole = *order[0];
  const auto n = static_cast<int>(shards.size());
  whole.shard = 0;
  whole.shards = 1;
  for (StatePart& p : whole.parts) {
    p.layout = WindowLayout::token_major;
    if (p.spec.shard_axis < 0) continue;
    p.spec.shape.dim[static_cast<size_t>(p.spec.shard_axis)] *= n;
    p.data.resize(p.data.size() * shards.size());
  }
  for (int s = 0; s < n; ++s) {
    const StateImage image = with_layout(*order[static_cast<size_t>(s)], WindowLayout::token_major);
    if (image.arithmetic != order[0]->arithmetic) whole.arithmetic += " | " + image.arithmetic;
    for (size_t i = 0; i < whole.parts.size(); ++i) {
      StatePart& to = whole.parts[i];
      if (to.spec.shard_axis < 0) {
        if (image.parts[i].data != order[0]->parts[i].data) refuse("of different states");
        continue;
      }
      if (image.parts[i].data.size() * shards.size() != to.data.size()) refuse("of different sizes");
      each_run(to, s, n, [&](int64_t target, int64_t source, int64_t bytes) {
        std::memcpy(to.data.data() + target, image.parts[i].data.data() + source, static_cast<size_t>(bytes));
      });
    }
  }
  return whole;
}

}  // namespace kdelta::runtime
