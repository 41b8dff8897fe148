#include "kdelta/api/check_values.h"

#include <algorithm>

#include "kdelta/core/error.h"
#include "kdelta/io/checkpoint.h"
#include "kdelta/io/value_check.h"

namespace kdelta {
namespace {

// Scales of MX codes come as plain bytes too.
DType type_of(const TensorInfo& t) {
  return t.dtype == DType::u8 && t.name.ends_with(".weight_scale") ? DType::f8_e8m0 : t.dtype;
}

}  // namespace

std::vector<DamagedTensor> check_values(const std::string& directory,
                                        const std::function<void(int64_t done, int64_t total)>& progress,
                                        const std::atomic<bool>* cancel) {
  constexpr int64_t kPiece = int64_t{64} << 20;  // a multiple of every element
  const Checkpoint checkpoint = Checkpoint::open(directory);
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& t : checkpoint.tensors()) order.push_back(&t);
  std::ranges::sort(order, {}, [](const TensorInfo* t) { return std::pair(t->file, t->begin); });  // as a disk reads
  std::vector<DamagedTensor> damaged;
  int64_t done = 0;
  for (const TensorInfo* t : order) {
    const DType dtype = type_of(*t);
    const int bits = dtype_bits(dtype);
    DamagedTensor d{.name = t->name,
                    .dtype = std::string(dtype_name(t->dtype)),
                    .file = checkpoint.file_path(t->file),
                    .values = t->bytes * 8 / bits,
                    .first = -1};
    for (int64_t begin = 0; begin < t->bytes; begin += kPiece) {
      if (cancel != nullptr && cancel->load()) fail(ErrorCode::failed, "check: interrupted");
      const int64_t bytes = std::min(kPiece, t->bytes - begin);
      const NoNumbers found = find_no_numbers(dtype, checkpoint.data(*t) + begin, bytes);
      if (found.count > 0 && d.first < 0) d.first = begin * 8 / bits + found.first;
      d.damaged += found.count;
      done += bytes;
      if (progress) progress(done, checkpoint.total_bytes());
    }
    if (d.damaged > 0) damaged.push_back(std::move(d));
  }
  return damaged;
}

}  // namespace kdelta
