#include <algorithm>
#include <optional>

#include "kdelta/core/check.h"
#include "kdelta/io/safetensors.h"
#include "kdelta/model/bound_weights.h"

namespace kdelta {
namespace {

bool is_mx_codes(const TensorInfo& t) {
  return t.name.ends_with("_packed") || t.dtype == DType::f8_e4m3 || t.dtype == DType::f8_e5m2;
}

std::string scale_name(const std::string& codes) {
  constexpr std::string_view kPacked = "_packed";
  return (codes.ends_with(kPacked) ? codes.substr(0, codes.size() - kPacked.size()) : codes) + "_scale";
}

}  // namespace

struct WeightUpdate::Staged {
  PutTensors tensors;
  std::vector<BoundWeights::Impl::Entry*> entries;                 // that ask for one of them, in order of putting
  std::optional<std::vector<BoundWeights::Impl::Change>> changes;  // what prepare() made of all that was put

  bool touches(const std::string& name) const { return tensors.find(name) != nullptr; }
};

WeightUpdate::WeightUpdate(BoundWeights& weights, Formats formats)
    : weights_(*weights.impl_), formats_(formats), staged_(std::make_unique<Staged>()) {
  KDELTA_CHECK(weights_.waiting.empty(), "an update before compose()");
}
WeightUpdate::~WeightUpdate() = default;

bool WeightUpdate::put(const std::string& name, DType dtype, const std::vector<int64_t>& shape, const void* data,
                       std::shared_ptr<const void> owner) {
  const std::vector<BoundWeights::Impl::Entry*>* askers = weights_.askers(name);
  if (askers == nullptr) return false;
  TensorInfo info{.name = name, .dtype = dtype, .shape = shape};
  if (!tensor_bytes(dtype, shape, &info.bytes))
    fail(ErrorCode::invalid_argument, "put: ", name, ": shape ", shape_text(shape), " of ", dtype_name(dtype),
         " has no size");
  if (data == nullptr && info.bytes > 0) fail(ErrorCode::invalid_argument, "put: ", name, ": null data");
  // A plain tensor and packed codes are two forms of one weight: the newer form counts, in one update there is one.
  if (name.ends_with("_packed") || !name.ends_with("_scale")) {
    const std::string other =
        name.ends_with("_packed") ? name.substr(0, name.size() - std::string("_packed").size()) : name + "_packed";
    if (staged_->touches(other))
      fail(ErrorCode::invalid_argument, "put: both ", other, " and ", name, ", expected one form of a weight");
    staged_->tensors.hide(other);
  }
  // So are three parts and one tensor of all: what came in an earlier update is gone, together the one counts.
  for (const BoundWeights::Impl::Entry* entry : *askers) {
    const PlacedSpec& p = entry->placed;
    if (p.spec.merged.empty()) continue;
    if (name != WeightReader::merged_name(p)) staged_->tensors.hide(WeightReader::merged_name(p));
    for (const std::string& part : p.spec.names)
      if (name == WeightReader::merged_name(p)) staged_->tensors.hide(p.prefix + part + p.spec.suffix);
  }
  staged_->changes.reset();
  staged_->tensors.put(info, data, std::move(owner));
  for (BoundWeights::Impl::Entry* entry : *askers)
    if (std::find(staged_->entries.begin(), staged_->entries.end(), entry) == staged_->entries.end())
      staged_->entries.push_back(entry);
  return true;
}

// Codes and scales of a weight that is in use change together.
void BoundWeights::Impl::check_pairs(const PutTensors& staged) {
  for (const auto& [name, tensor] : staged.tensors()) {
    const std::vector<Entry*>& asking = *askers(name);
    if (std::none_of(asking.begin(), asking.end(), [](const Entry* e) { return e->bound; })) continue;
    const auto lone = [&name = name](const std::string& other) {
      fail(ErrorCode::bad_file, "update: tensor ", name, " without ", other, ", expected both of a weight in use");
    };
    if (is_mx_codes(*tensor.info) && staged.find(scale_name(name)) == nullptr) lone(scale_name(name));
    if (!name.ends_with("_scale")) continue;
    const std::string base = name.substr(0, name.size() - std::string("_scale").size());
    if (staged.find(base) == nullptr && staged.find(base + "_packed") == nullptr) lone("its codes");
  }
}

void BoundWeights::Impl::check_formats(const std::vector<Change>& changes) const {
  for (const Change& c : changes) {
    const WeightSpec& spec = c.entry->placed.spec;
    Matrix* const* target = std::get_if<Matrix*>(&spec.target);
    if (target == nullptr || !c.entry->bound) continue;
    const Matrix& have = **target;
    const bool product = spec.kind == WeightKind::product;
    const DType dtype = product ? composed_dtype(c.matrix.dtype, c.factor.dtype) : c.matrix.dtype;
    if (dtype == have.dtype && (product || c.matrix.input == have.input)) continue;
    const auto text = [](DType d, const MxInput& input) {
      return str(dtype_name(d), input.quantised() ? " with inputs in " + to_string(input) : "");
    };
    fail(ErrorCode::bad_file, "update: tensor ", c.entry->placed.prefix, spec.names[0], ": ",
         text(dtype, product ? have.input : c.matrix.input), ", expected ", text(have.dtype, have.input),
         ", as the weight in use");
  }
}

void WeightUpdate::require_all() const {
  const LayeredSource only(&staged_->tensors, nullptr, nullptr, false);
  const WeightReader reader = weights_.reader_of(only);
  for (const BoundWeights::Impl::Entry& entry : weights_.entries) reader.require(entry.placed);
}

void WeightUpdate::prepare() {
  if (staged_->changes) return;
  const LayeredSource tensors = weights_.source(&staged_->tensors);
  const WeightReader reader = weights_.reader_of(tensors);
  weights_.check_pairs(staged_->tensors);
  std::vector<BoundWeights::Impl::Change> changes;
  for (BoundWeights::Impl::Entry* entry : staged_->entries)
    if (entry->bound || reader.complete(entry->placed)) changes.push_back(weights_.prepare(*entry, reader));
  weights_.check_groups(reader, weights_.same_groups(staged_->entries));
  if (formats_ == Formats::kept) weights_.check_formats(changes);
  staged_->changes = std::move(changes);
}

void WeightUpdate::commit() {
  prepare();
  weights_.put.merge(std::move(staged_->tensors));
  for (BoundWeights::Impl::Change& c : *staged_->changes) weights_.apply(c);
  *staged_ = {};
}

}  // namespace kdelta
