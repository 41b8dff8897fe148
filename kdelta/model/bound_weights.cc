#include "kdelta/model/bound_weights.h"

#include <algorithm>
#include <cstring>

#include "kdelta/core/check.h"
#include "kdelta/core/threads.h"

namespace kdelta {

void PutTensors::put(const TensorInfo& info, const void* data, std::shared_ptr<const void> owner) {
  Tensor t{std::make_unique<TensorInfo>(info), {}, std::move(owner)};
  t.stored = {t.info.get(), static_cast<const uint8_t*>(data), "update"};
  hidden_.erase(info.name);
  tensors_.insert_or_assign(info.name, std::move(t));
}

const StoredTensor* PutTensors::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second.stored;
}

void PutTensors::merge(PutTensors&& newer) {
  for (const std::string& name : newer.hidden_) {
    tensors_.erase(name);
    hidden_.insert(name);
  }
  for (auto& [name, tensor] : newer.tensors_) {
    hidden_.erase(name);
    tensors_.insert_or_assign(name, std::move(tensor));
  }
}

std::optional<StoredTensor> LayeredSource::find(const std::string& name) const {
  for (const PutTensors* put : {staged_, put_}) {
    if (put == nullptr) continue;
    if (const StoredTensor* t = put->find(name)) return *t;
    if (put->hides(name)) return {};
  }
  const TensorInfo* info = checkpoint_ == nullptr ? nullptr : checkpoint_->find(name);
  if (info == nullptr) return {};
  if (used_ != nullptr) used_->insert(info);
  return StoredTensor{info, headers_only_ ? nullptr : checkpoint_->data(*info), checkpoint_->file_path(info->file)};
}

std::string LayeredSource::origin() const {
  return checkpoint_ == nullptr ? "update" : checkpoint_->directory();
}

namespace {

bool is_aligned(const Matrix& m) {
  const int64_t align = dtype_bits(m.dtype) >= 16 ? dtype_bytes(m.dtype) : 1;
  return reinterpret_cast<uintptr_t>(m.data) % static_cast<uintptr_t>(align) == 0;
}

// Nobody reads the values of headers.
constexpr uintptr_t kNowhere = 64;

std::string_view format_name(DType dtype) {
  switch (dtype) {
    case DType::f4_e2m1:
      return "MXFP4";
    case DType::f8_e4m3:
      return "MXFP8";
    case DType::f8_e5m2:
      return "MXFP8 E5M2";
    default:
      return dtype_name(dtype);
  }
}

}  // namespace

namespace {

// Of a team whose first member does something else meanwhile.
Options composing(const BindOptions& o) {
  Options options = o.options;
  const int threads = options.threads > 0 ? options.threads : available_cpus();
  if (o.compose_later) options.threads = std::max(1, threads - 1);
  return options;
}

}  // namespace

BoundWeights::Impl::Impl(const std::vector<PlacedSpec>& specs, const BindOptions& bind_options)
    : options(bind_options), composer(composing(bind_options)) {
  check_shard(options.shard);
  for (const PlacedSpec& placed : specs) {
    report.elements += placed.spec.shape.numel();
    entries.push_back({placed, {}, false});
  }
}

// MX codes are bytes, so only plain rows can be misaligned.
Matrix BoundWeights::Impl::aligned(const Matrix& m, std::vector<Buffer>& copies) {
  if (headers_only || is_aligned(m)) {
    report.mapped_bytes += m.bytes();
    return m;
  }
  report.missing_alignment += m.bytes();
  report.converted_bytes += m.bytes();
  copies.emplace_back(Device{}, m.bytes());
  const Matrix copy = dense_matrix(copies.back().data(), m.dtype, m.rows, m.cols);
  for (int64_t r = 0; r < m.rows; ++r)
    std::memcpy(static_cast<char*>(copies.back().data()) + r * copy.row_bytes, m.row(r),
                static_cast<size_t>(copy.row_bytes));
  return copy;
}

// Memory of `bytes` that the entry keeps, unless it has as much already: its address then stays.
void BoundWeights::Impl::reserve(Change& c, int64_t bytes) {
  if (!c.entry->bound) report.converted_bytes += bytes;
  const std::vector<Buffer>& have = c.entry->storage;
  if (have.size() == 1 && have.front().bytes() >= bytes && c.entry->bound) return;
  if (!headers_only) c.storage.emplace_back(Device{}, std::max<int64_t>(bytes, 1));
}

void BoundWeights::Impl::prepare_matrix(Change& c, const WeightReader& reader) {
  c.matrix = aligned(reader.matrix(c.entry->placed), c.storage);
}

void BoundWeights::Impl::prepare_product(Change& c, const WeightReader& reader) {
  const PlacedSpec& placed = c.entry->placed;
  c.matrix = reader.matrix(placed, 0);
  c.factor = reader.matrix(placed, 1);
  if (const char* reason = refuse_composition(c.matrix.dtype, c.factor.dtype))
    fail(ErrorCode::bad_file, placed.prefix, placed.spec.names[0], " (", to_string(reader.precision(placed, 0)),
         ") and ", placed.prefix, placed.spec.names[1], " (", to_string(reader.precision(placed, 1)), "): ", reason);
  if (c.deferred) return;
  const DType dtype = composed_dtype(c.matrix.dtype, c.factor.dtype);
  const int64_t bytes = placed.spec.shape.numel() * dtype_bytes(dtype);
  if (!c.entry->bound) report.composed_bytes += bytes;
  reserve(c, bytes);
  if (headers_only) return;
  c.matrix = aligned(c.matrix, c.borrowed);
  c.factor = aligned(c.factor, c.borrowed);
  composer.prepare(c.matrix, c.factor);
}

void BoundWeights::Impl::prepare_values(Change& c, const WeightReader& reader) {
  const PlacedSpec& placed = c.entry->placed;
  const int64_t n = WeightReader::values_shape(placed.spec).numel();
  reader.check_values(placed);
  if (!headers_only) {
    c.values.resize(static_cast<size_t>(n));
    reader.values(placed, c.values.data());
  }
  if (!c.deferred) reserve(c, n * 4);
}

BoundWeights::Impl::Change BoundWeights::Impl::prepare(Entry& entry, const WeightReader& reader) {
  const WeightKind kind = entry.placed.spec.kind;
  Change c{.entry = &entry, .deferred = !allocated && kind != WeightKind::matrix};
  reader.require(entry.placed);
  switch (kind) {
    case WeightKind::matrix:
      prepare_matrix(c, reader);
      return c;
    case WeightKind::product:
      prepare_product(c, reader);
      return c;
    case WeightKind::vector:
    case WeightKind::head_scalar:
    case WeightKind::conv_taps:
    case WeightKind::score_row:
      prepare_values(c, reader);
      return c;
  }
  KDELTA_UNREACHABLE("weight kind", kind);
}

void BoundWeights::Impl::apply(Change& c) {
  if (c.deferred) return;
  Entry& entry = *c.entry;
  const WeightSpec& spec = entry.placed.spec;
  if (!c.storage.empty() || spec.kind == WeightKind::matrix) entry.storage = std::move(c.storage);
  void* data = headers_only            ? reinterpret_cast<void*>(kNowhere)
               : entry.storage.empty() ? nullptr
                                       : entry.storage[0].data();
  switch (spec.kind) {
    case WeightKind::matrix:
      *std::get<Matrix*>(spec.target) = c.matrix;
      break;
    case WeightKind::product: {
      if (!headers_only && !options.compose_later) composer.compose(c.matrix, c.factor, data);
      const DType dtype = composed_dtype(c.matrix.dtype, c.factor.dtype);
      *std::get<Matrix*>(spec.target) = dense_matrix(data, dtype, spec.shape[0], spec.shape[1]);
      break;
    }
    default:
      if (!headers_only) std::memcpy(data, c.values.data(), c.values.size() * sizeof(float));
      *std::get<View<const float>*>(spec.target) = {static_cast<const float*>(data), WeightReader::values_shape(spec)};
  }
  entry.bound = true;
}

void BoundWeights::Impl::check_groups(const WeightReader& reader, const std::vector<Entry*>& some) const {
  struct First {
    DType dtype;
    MxInput input;
    std::string name;
  };
  const auto inputs = [](const MxInput& input) { return input.quantised() ? to_string(input) : "unquantised"; };
  const auto floating = [](DType d) { return d == DType::bf16 || d == DType::f32; };
  std::unordered_map<std::string, First> groups;
  for (const Entry* entry : some) {
    const PlacedSpec& placed = entry->placed;
    if (placed.spec.group.empty() || !reader.complete(placed)) continue;
    const bool one_call = placed.spec.one_call;
    const auto text = [&](DType d) {
      return floating(d) && !one_call ? std::string_view("floating point") : format_name(d);
    };
    for (size_t i = 0; i < placed.spec.names.size(); ++i) {
      const DType dtype = reader.dtype(placed, i);
      const std::string name = placed.prefix + placed.spec.names[i];
      const MxInput input = reader.input(placed, i);
      const auto [it, added] = groups.try_emplace(placed.prefix + '\n' + placed.spec.group, First{dtype, input, name});
      const First& first = it->second;
      if (first.dtype != dtype && (one_call || !floating(first.dtype) || !floating(dtype)))
        fail(ErrorCode::bad_file, reader.origin(), ": tensor ", name, " is ", text(dtype), ", ", first.name, " is ",
             text(first.dtype), ": expected one precision for ", placed.spec.group, " of a layer");
      if (first.input != input)
        fail(ErrorCode::bad_file, reader.origin(), ": tensor ", name, " is ", text(dtype), " with ", inputs(input),
             " inputs, ", first.name, " is ", text(first.dtype), " with ", inputs(first.input),
             " inputs: expected one scheme for ", placed.spec.group, " of a layer");
    }
  }
}

void BoundWeights::Impl::bind_all() {
  LayeredSource tensors = source();
  std::unordered_set<const TensorInfo*> used;
  tensors.record(&used);
  const WeightReader reader = reader_of(tensors);
  std::vector<Entry*> all;
  for (Entry& entry : entries) {
    Change c = prepare(entry, reader);
    apply(c);
    if (options.compose_later && !headers_only && entry.placed.spec.kind == WeightKind::product)
      waiting.push_back(std::move(c));
    all.push_back(&entry);
  }
  check_groups(reader, all);
  for (const TensorInfo& t : checkpoint->tensors())
    if (!used.contains(&t)) report.unused.push_back(t.name);
}

void BoundWeights::Impl::compose_waiting() {
  for (const Change& c : waiting) composer.compose(c.matrix, c.factor, c.entry->storage[0].data());
  waiting.clear();
  options.compose_later = false;
}

const std::vector<BoundWeights::Impl::Entry*>* BoundWeights::Impl::askers(const std::string& name) {
  if (by_name.empty())
    for (Entry& entry : entries) {
      for (const std::string& n : entry.placed.spec.names)
        by_name[entry.placed.prefix + n + entry.placed.spec.suffix].push_back(&entry);
      if (!entry.placed.spec.merged.empty()) by_name[WeightReader::merged_name(entry.placed)].push_back(&entry);
    }
  std::string base = name;
  for (const char* ending : {"_packed", "_scale"})
    if (name.ends_with(ending) && !by_name.contains(name)) base = name.substr(0, name.size() - std::strlen(ending));
  const auto it = by_name.find(base);
  return it == by_name.end() ? nullptr : &it->second;
}

std::vector<BoundWeights::Impl::Entry*> BoundWeights::Impl::same_groups(const std::vector<Entry*>& some) {
  std::unordered_set<std::string> wanted;
  for (const Entry* entry : some)
    if (!entry->placed.spec.group.empty()) wanted.insert(entry->placed.prefix + '\n' + entry->placed.spec.group);
  std::vector<Entry*> all;
  for (Entry& entry : entries)
    if (wanted.contains(entry.placed.prefix + '\n' + entry.placed.spec.group)) all.push_back(&entry);
  return all;
}

}  // namespace kdelta
