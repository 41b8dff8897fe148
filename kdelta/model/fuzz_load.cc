// A small checkpoint changed at random: refused with an Error of the kinds that bad files and sizes have, whose message
// is UTF-8, or every weight that the model holds lies inside the tensor of its name, and can be read to its end. What
// headers alone say is what the whole file says.
#include "kdelta/core/check.h"
#include "kdelta/model/fuzz_checkpoint.h"
#include "kdelta/model/load.h"

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

// Empty: loaded.
std::string load(LoadFormat format, const LoadChoices& choices) {
  try {
    const LoadedModel m = load_model(fuzz::ChangedCheckpoint::directory(), format, choices);
    if (format == LoadFormat::checkpoint) check_model(m);
    for (const std::string& note : m.notes) KDELTA_CHECK(is_utf8(note), note);
    return {};
  } catch (const Error& e) {
    if (e.code() != ErrorCode::bad_file && e.code() != ErrorCode::unsupported && e.code() != ErrorCode::out_of_memory)
      throw;
    KDELTA_CHECK(is_utf8(e.what()) && e.what()[0] != 0, e.what());
    return e.what();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  LoadChoices choices{.kda_gate = static_cast<GateChoice>(in.pick(3))};
  choices.options.threads = 1;
  choices.options.isa = IsaLevel::portable;  // the fastest to start, and the one with the plainest reads
  const fuzz::ChangedCheckpoint changed(in);
  const std::string headers = load(LoadFormat::headers, choices), whole = load(LoadFormat::checkpoint, choices);
  if (whole.empty()) KDELTA_CHECK(headers.empty(), headers);
  return 0;
}
