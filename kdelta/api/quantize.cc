#include "kdelta/api/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "kdelta/api/quantize_files.h"
#include "kdelta/api/quantize_plan.h"
#include "kdelta/core/check.h"
#include "kdelta/core/exec.h"
#include "kdelta/io/checkpoint_index.h"
#include "kdelta/io/new_directory.h"
#include "kdelta/io/safetensors.h"
#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/common/dispatch.h"

namespace kdelta {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPieceBytes = int64_t{16} << 20;  // of the source at a time

// Bytes of the source that are done, and the wish to stop.
class Meter {
 public:
  Meter(const QuantizeOptions& o, int64_t total) : options_(o), total_(total) {}
  void add(int64_t bytes) {
    done_ += bytes;
    if (options_.progress) options_.progress(done_, total_);
    if (options_.cancel != nullptr && *options_.cancel)
      fail(ErrorCode::failed, "cancelled; the same command goes on from what is in ", options_.out, ".partial");
  }

 private:
  const QuantizeOptions& options_;
  int64_t total_, done_ = 0;
};

// Each row of x by its largest magnitude / 127, a row of zeros by 1. Returns the first row that is not finite, or -1.
int64_t quantise_int8(const Exec& ex, const AnyConstView& x, int8_t* codes, float* scale) {
  const int64_t cols = x.dim(1);
  std::atomic<int64_t> bad{x.dim(0)};
  parallel_for(ex, x.dim(0), 16384 / std::max<int64_t>(1, cols) + 1, [&](int64_t begin, int64_t end) {
    dispatch_activation(x.dtype, [&](auto in) {
      for (int64_t r = begin; r < end; ++r) {
        const auto* row = x.at<const decltype(in)>(r);
        float amax = 0;
        bool finite = true;
        for (int64_t c = 0; c < cols; ++c) {
          finite = finite && std::isfinite(to_float(row[c]));
          amax = std::max(amax, std::fabs(to_float(row[c])));
        }
        if (!finite)
          for (int64_t seen = bad; r < seen && !bad.compare_exchange_weak(seen, r);) continue;
        scale[r] = amax / 127 > 0 ? amax / 127 : 1;
        for (int64_t c = 0; finite && c < cols; ++c)
          codes[r * cols + c] = static_cast<int8_t>(std::nearbyint(to_float(row[c]) / scale[r]));
      }
    });
  });
  return bad == x.dim(0) ? -1 : bad.load();
}

// Quantises and copies tensors piece by piece into a file being written.
class TensorWriter {
 public:
  TensorWriter(const Checkpoint& checkpoint, MxScaleRule rule, int threads, Meter& meter)
      : checkpoint_(checkpoint), rule_(rule), meter_(meter), scratch_(Device{}, 0), threads_(threads) {
    exec_.scratch = &scratch_;
    exec_.threads = &threads_;
    exec_.options = &options_;
  }

  // `at`: number of the tensor's first output in the file.
  void write(const PlannedTensor& p, SafetensorsWriter& file, size_t at) {
    if (p.format == WeightFormat::keep)
      copy(*p.source, file, at);
    else
      quantise(p, file, at);
  }

  int64_t buffer_bytes() const { return source_.bytes() + codes_.bytes() + scale_.bytes(); }

 private:
  void copy(const TensorInfo& t, SafetensorsWriter& file, size_t at) {
    for (int64_t begin = 0; begin < t.bytes; begin += kPieceBytes) {
      const int64_t bytes = std::min(kPieceBytes, t.bytes - begin);
      file.write(at, begin, checkpoint_.data(t) + begin, bytes);
      meter_.add(bytes);
    }
  }

  void quantise(const PlannedTensor& p, SafetensorsWriter& file, size_t at) {
    const TensorInfo& t = *p.source;
    const int64_t rows = t.shape[0], row_bytes = t.shape[1] * dtype_bytes(t.dtype);
    const int64_t code_bytes = p.output_bytes(0) / std::max<int64_t>(1, rows);
    const int64_t scale_bytes = p.output_bytes(1) / std::max<int64_t>(1, rows);
    const int64_t most = std::max<int64_t>(1, kPieceBytes / std::max<int64_t>(1, row_bytes));
    for (int64_t r = 0; r < rows; r += most) {
      const int64_t n = std::min(most, rows - r);
      // A tensor of the file may lie at any address.
      std::memcpy(room(source_, n * row_bytes), checkpoint_.data(t) + r * row_bytes,
                  static_cast<size_t>(n * row_bytes));
      const AnyConstView x(source_.data(), t.dtype, {n, t.shape[1]});
      void *codes = room(codes_, n * code_bytes), *scale = room(scale_, n * scale_bytes);
      const int64_t bad = p.format == WeightFormat::int8
                              ? quantise_int8(exec_, x, static_cast<int8_t*>(codes), static_cast<float*>(scale))
                              : quantise_mx(x, p.format, static_cast<uint8_t*>(codes), static_cast<uint8_t*>(scale));
      if (bad >= 0)
        fail(ErrorCode::bad_file, checkpoint_.file_path(t.file), ": tensor ", t.name, ": not finite in row ", r + bad);
      file.write(at, r * code_bytes, codes, n * code_bytes);
      file.write(at + 1, r * scale_bytes, scale, n * scale_bytes);
      meter_.add(n * row_bytes);
    }
  }

  // The first row that is not finite; -1: all are.
  int64_t quantise_mx(const AnyConstView& x, WeightFormat wanted, uint8_t* codes, uint8_t* scale) {
    const DType format = wanted == WeightFormat::mxfp8 ? DType::f8_e4m3 : DType::f4_e2m1;
    const int64_t n = x.dim(0), scale_bytes = mx_scale_bytes(x.dim(1));
    mx_quantize(exec_, {.format = format,
                        .rule = rule_,
                        .x = x,
                        .codes = View<uint8_t>(codes, {n, mx_code_bytes(format, x.dim(1))}),
                        .scale = View<uint8_t>(scale, {n, scale_bytes})});
    // 255 is what a block with NaN or infinity gets.
    const void* bad = std::memchr(scale, 255, static_cast<size_t>(n * scale_bytes));
    return bad == nullptr ? -1 : (static_cast<const uint8_t*>(bad) - scale) / scale_bytes;
  }

  static void* room(Buffer& buffer, int64_t bytes) {
    if (buffer.bytes() < bytes) buffer = Buffer(Device{}, bytes);
    return buffer.data();
  }

  const Checkpoint& checkpoint_;
  MxScaleRule rule_;
  Meter& meter_;
  Options options_;
  Arena scratch_;
  ThreadPool threads_;
  Exec exec_;
  Buffer source_, codes_, scale_;
};

void write_file(const std::vector<PlannedTensor>& tensors, const std::string& path, TensorWriter& writer) {
  std::vector<TensorToWrite> outputs;
  for (const PlannedTensor& p : tensors) outputs.insert(outputs.end(), p.outputs.begin(), p.outputs.end());
  const std::pair<std::string, std::string> metadata[] = {{"format", "pt"}};  // what the releases say
  SafetensorsWriter file(path, outputs, metadata);
  size_t at = 0;
  for (const PlannedTensor& p : tensors) {
    writer.write(p, file, at);
    at += p.outputs.size();
  }
  file.commit();
}

void write_index(const QuantizePlan& plan, const ResultFiles& files, const std::string& path) {
  CheckpointIndex index{.shards = files.shards, .total_size = plan.report.bytes_after};
  for (size_t f = 0; f < plan.files.size(); ++f)
    for (const PlannedTensor& p : plan.files[f])
      for (const TensorToWrite& t : p.outputs) index.entries.push_back({t.name, static_cast<int>(f)});
  std::ranges::sort(index.entries, {}, &CheckpointIndex::Entry::tensor);
  write_text_file(path, checkpoint_index_text(index));
}

void check_room(const std::string& directory, int64_t bytes) {
  const auto available = static_cast<int64_t>(fs::space(directory).available);
  if (available < bytes) fail(ErrorCode::failed, directory, ": ", bytes, " bytes needed, the disk has ", available);
}

void write_all(const Checkpoint& checkpoint, QuantizePlan& plan, const ResultFiles& files,
               const QuantizeSettings& settings, const QuantizeOptions& o, const std::string& partial) {
  Meter meter(o, plan.report.bytes_before);
  TensorWriter writer(checkpoint, settings.weight_rule, o.threads, meter);
  FinishedFiles finished(partial);
  std::vector<size_t> todo;
  int64_t missing = 0;
  for (size_t f = 0; f < plan.files.size(); ++f) {
    const std::string& name = files.shards[f];
    int64_t before = 0, after = 0;
    for (const PlannedTensor& p : plan.files[f]) before += p.source->bytes, after += p.bytes();
    if (finished.holds(name)) {
      ++plan.report.files_kept;
      meter.add(before);
    } else {
      plan.report.files_redone += finished.exists(name) ? 1 : 0;
      todo.push_back(f);
      missing += after;
    }
  }
  check_room(partial, missing);
  for (size_t f : todo) {
    write_file(plan.files[f], partial + "/" + files.shards[f], writer);
    finished.add(files.shards[f]);
  }
  finished.forget();
  plan.report.buffer_bytes = writer.buffer_bytes();
}

// What a run would refuse before it reads a tensor, and what it would find of an earlier one.
void foretell(const ResultFiles& files, const std::string& job, const QuantizeOptions& o, QuantizeReport& report) {
  if (o.out.empty() || !NewDirectory::check(o.out, kQuantizeJobName, job)) return;
  const std::string partial = NewDirectory::partial_of(o.out);
  check_unfinished(partial, files);
  const FinishedFiles finished(partial);
  for (const std::string& name : files.shards) {
    if (finished.lists(name))
      ++report.files_kept;
    else
      report.files_redone += finished.exists(name) ? 1 : 0;
  }
}

}  // namespace

QuantizeReport quantize(const QuantizeOptions& o) {
  const QuantizeSettings settings = parse_settings(o);
  const ModelConfig config = read_config(o.model);
  const Checkpoint checkpoint = Checkpoint::open(o.model);
  QuantizePlan plan = plan_quantize(checkpoint, config, settings);
  const ResultFiles files = result_files(checkpoint);
  const std::string job = job_text(checkpoint, files, o);
  if (o.dry_run) {
    foretell(files, job, o, plan.report);
    return plan.report;
  }
  NewDirectory directory(o.out, kQuantizeJobName, job);
  check_unfinished(directory.partial(), files);
  write_all(checkpoint, plan, files, settings, o, directory.partial());
  for (const std::string& name : files.companions) {
    const fs::path copy = fs::path(directory.partial()) / name;
    fs::remove(copy);  // of an earlier run; as write-protected as its source
    fs::copy_file(fs::path(o.model) / name, copy);
  }
  if (files.index) write_index(plan, files, directory.partial() + "/" + kIndexName);
  const Json text = quantized_config(parse_json_file(o.model + "/config.json"), config, plan, settings);
  write_text_file(directory.partial() + "/config.json", json_text(text, {.indent = 2}) + "\n");
  directory.commit();
  return plan.report;
}

}  // namespace kdelta
