// A small checkpoint changed at random: refused with an Error of the kinds that bad files and sizes have, whose message
// is UTF-8, or every weight that the model holds lies inside the tensor of its name, and can be read to its end. What
// headers alone say is what the whole file says. Ranks hold, bit for bit, their part of what one holds, or cannot have
// equal parts. A reload leaves what loading anew gives, or everything as it was.
#include <map>

#include "kdelta/core/check.h"
#include "kdelta/model/fuzz_checkpoint.h"
#include "kdelta/model/load.h"
#include "kdelta/model/reload.h"

namespace {

using namespace kdelta;

// Bytes of a matrix from its first to behind its last.
struct Extent {
  const uint8_t *begin, *end;
};
Extent extent(const uint8_t* data, int64_t rows, int64_t stride, int64_t used) {
  return {data, rows == 0 ? data : data + (rows - 1) * stride + used};
}

// A view of the file lies inside one tensor; what is no view has memory of its own, which ASan watches.
void check_inside(const Checkpoint& checkpoint, const Extent& e, const std::string& name) {
  for (const TensorInfo& t : checkpoint.tensors()) {
    const uint8_t* at = checkpoint.data(t);
    if (e.begin < at || e.begin >= at + t.bytes) continue;
    KDELTA_CHECK(e.end <= at + t.bytes, name);
    KDELTA_CHECK(t.name.starts_with(name), name, " reads ", t.name);
    return;
  }
}

void check_matrix(const Checkpoint& checkpoint, const PlacedSpec& p, const Matrix& m) {
  KDELTA_CHECK(m.rows == p.spec.shape[0] && m.cols == p.spec.shape[1], p.spec.names[0]);
  const std::string name = p.prefix + p.spec.names[0] + p.spec.suffix;
  check_inside(checkpoint, extent(m.row(0), m.rows, m.row_bytes, (m.cols * dtype_bits(m.dtype) + 7) / 8), name);
  if (m.is_mx()) check_inside(checkpoint, extent(m.scale_row(0), m.rows, m.scale_row_bytes, m.cols / kMxBlock), name);
  std::vector<float> row(static_cast<size_t>(m.cols));
  for (int64_t r = 0; r < m.rows; ++r) dequantize_row(m, r, row.data());
}

void check_model(const LoadedModel& m) {
  for (const PlacedSpec& p : m.model->weights()) {
    if (Matrix* const* matrix = std::get_if<Matrix*>(&p.spec.target)) {
      check_matrix(*m.checkpoint, p, **matrix);
      continue;
    }
    const View<const float>& v = *std::get<View<const float>*>(p.spec.target);
    KDELTA_CHECK(v.shape == WeightReader::values_shape(p.spec), p.spec.names[0]);
    for (int64_t i = 0; i < v.shape.numel(); ++i) KDELTA_CHECK(v.data[i] - v.data[i] == 0, p.spec.names[0]);
  }
}

// All weights in fp32: rows by columns, vectors as one row, taps as they are kept.
struct Values {
  int64_t rows = 0, cols = 0;
  std::vector<float> x;
  ShardRule shard = ShardRule::whole;
  int64_t stacked = 1;  // parts of the columns that ranks share each on its own
  bool operator==(const Values& v) const {
    return rows == v.rows && cols == v.cols && x.size() == v.x.size() &&
           std::memcmp(x.data(), v.x.data(), x.size() * sizeof(float)) == 0;
  }
};
using AllValues = std::map<std::string, Values>;

AllValues values_of(const LoadedModel& m) {
  AllValues all;
  for (const PlacedSpec& p : m.model->weights()) {
    const WeightSpec& s = p.spec;
    Values v{.shard = s.shard};
    if (Matrix* const* matrix = std::get_if<Matrix*>(&s.target)) {
      v.rows = (*matrix)->rows, v.cols = (*matrix)->cols;
      v.x.resize(static_cast<size_t>(v.rows * v.cols));
      for (int64_t r = 0; r < v.rows; ++r) dequantize_row(**matrix, r, v.x.data() + r * v.cols);
    } else {
      const View<const float>& have = *std::get<View<const float>*>(s.target);
      const bool taps = s.kind == WeightKind::conv_taps;
      v.rows = taps ? have.shape[0] : 1, v.cols = have.shape.numel() / std::max<int64_t>(v.rows, 1);
      v.x.assign(have.data, have.data + have.shape.numel());
      if (v.shard == ShardRule::rows) v.shard = ShardRule::columns;
      if (taps) v.stacked = static_cast<int64_t>(s.names.size());
    }
    all[p.prefix + s.names[0] + s.suffix] = std::move(v);
  }
  return all;
}

// What `rule`, the part's own, leaves a rank of it.
Values part_of(const Values& whole, ShardRule rule, const Shard& shard) {
  Values v = whole;
  v.shard = rule;
  if (v.shard == ShardRule::whole) return v;
  (v.shard == ShardRule::rows ? v.rows : v.cols) /= shard.ranks;
  v.x.clear();
  const int64_t first = v.shard == ShardRule::rows ? shard.rank * v.rows : 0, part = v.cols / v.stacked,
                stride = whole.cols / v.stacked;
  for (int64_t r = 0; r < v.rows; ++r)
    for (int64_t s = 0; s < v.stacked; ++s)
      for (int64_t c = 0; c < part; ++c)
        v.x.push_back(whole.x[static_cast<size_t>((first + r) * whole.cols + s * stride + c +
                                                  (v.shard == ShardRule::columns ? shard.rank * part : 0))]);
  return v;
}

// Empty: loaded, into *out if given.
std::string load(LoadFormat format, const LoadChoices& choices, LoadedModel* out = nullptr) {
  try {
    LoadedModel m = load_model(fuzz::ChangedCheckpoint::directory(), format, choices);
    if (format == LoadFormat::checkpoint) check_model(m);
    for (const std::string& note : m.notes) KDELTA_CHECK(is_utf8(note), note);
    if (out != nullptr) *out = std::move(m);
    return {};
  } catch (const Error& e) {
    if (e.code() != ErrorCode::bad_file && e.code() != ErrorCode::unsupported && e.code() != ErrorCode::out_of_memory)
      throw;
    KDELTA_CHECK(is_utf8(e.what()) && e.what()[0] != 0, e.what());
    return e.what();
  }
}

void check_ranks(LoadChoices choices, const LoadedModel& one, fuzz::Input& in) {
  choices.shard.ranks = 1 + static_cast<int>(in.pick(4));
  choices.shard.split = in.pick(2) == 0 ? ExpertSplit::experts : ExpertSplit::width;
  // Every rank decides alike, but not always as one does.
  choices.kda_gate = one.config.kda.composed_gate ? GateChoice::composed : GateChoice::factored;
  const AllValues whole = values_of(one);
  for (choices.shard.rank = 0; choices.shard.rank < choices.shard.ranks; ++choices.shard.rank) {
    LoadedModel part;
    if (const std::string error = load(LoadFormat::checkpoint, choices, &part); !error.empty()) {
      KDELTA_CHECK(error.find("cannot be dealt") != error.npos || error.find("a rank's part has") != error.npos, error);
      return;
    }
    for (const auto& [name, values] : values_of(part)) {
      KDELTA_CHECK(values == part_of(whole.at(name), values.shard, choices.shard), name);
    }
  }
}

void check_reload(const LoadChoices& choices, LoadedModel& m) {
  const AllValues before = values_of(m);
  LoadedModel anew;
  const std::string error = load(LoadFormat::checkpoint, choices, &anew);
  try {
    const ModelConfig config = read_config(fuzz::ChangedCheckpoint::directory());
    const uint64_t identity = reload_weights(m, config, fuzz::ChangedCheckpoint::directory());
    KDELTA_CHECK(error.empty(), error);
    KDELTA_CHECK(identity == anew.identity && values_of(m) == values_of(anew));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::bad_file && e.code() != ErrorCode::out_of_memory) throw;
    KDELTA_CHECK(is_utf8(e.what()), e.what());
    KDELTA_CHECK(values_of(m) == before, e.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  LoadChoices choices{.kda_gate = static_cast<GateChoice>(in.pick(3))};
  choices.options.threads = 1;
  choices.options.isa = IsaLevel::portable;  // the fastest to start, and the one with the plainest reads
  const size_t then = in.pick(3);
  fuzz::ChangedCheckpoint changed(in);
  LoadedModel model;
  const std::string headers = load(LoadFormat::headers, choices), whole = load(LoadFormat::checkpoint, choices, &model);
  if (!whole.empty()) return 0;
  KDELTA_CHECK(headers.empty(), headers);
  if (then == 1) check_ranks(choices, model, in);
  if (then == 2) {
    changed.change_tensors();
    check_reload(choices, model);
  }
  return 0;
}
