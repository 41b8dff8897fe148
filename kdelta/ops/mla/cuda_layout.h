// Scratch of mla's CUDA rows: a function of the description alone, for the planner and the kernels.
#pragma once

#include "kdelta/ops/mla/variants.h"

namespace kdelta::mla_cuda {

inline constexpr int64_t kMostShared = 96 * 1024;          // of a block of the portable row, dynamic
inline constexpr int64_t kBatchBytes = int64_t{64} << 20;  // q' and sums of one batch of tokens
inline constexpr int64_t kMostBatch = int64_t{1} << 18;

// Hands out arrays at multiples of 256 bytes; with a null base it only counts.
class Layout {
 public:
  explicit Layout(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* take(int64_t count) {
    T* p = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return p;
  }
  int64_t bytes() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

// q' and the sums of `heads` heads of one token.
inline int64_t portable_shared_bytes(int64_t heads, int64_t latent, int64_t rope) {
  return heads * (2 * latent + rope) * 4;
}
// Heads that share a read of the cache.
inline int portable_heads(int64_t latent, int64_t rope) {
  return portable_shared_bytes(4, latent, rope) <= kMostShared ? 4 : 1;
}

struct PortableWork {
  int32_t* sound;  // [N] 1: the row is computed
  int32_t* live;   // [batch] 1: the token belongs to such a row
  float* query;    // [batch, H, L+R]
  float* sums;     // [batch, H, L]
  int64_t batch;
};
inline PortableWork portable_work(const MlaDesc& d, void* scratch) {
  Layout layout(scratch);
  const int64_t token = d.heads * (2 * d.latent + d.rope) * 4;
  PortableWork w{};
  w.batch =
      std::clamp<int64_t>(kBatchBytes / std::max<int64_t>(token, 1), 1, std::clamp<int64_t>(d.tokens, 1, kMostBatch));
  w.sound = layout.take<int32_t>(d.sequences);
  w.live = layout.take<int32_t>(w.batch);
  w.query = layout.take<float>(w.batch * d.heads * (d.latent + d.rope));
  w.sums = layout.take<float>(w.batch * d.heads * d.latent);
  return w;
}
// At least what portable_work hands out, and never less for a larger description (its batches are whole tokens).
inline int64_t portable_scratch(const MlaDesc& d) {
  const int64_t token = d.heads * (2 * d.latent + d.rope) * 4;
  return 4 * (d.sequences + std::min(d.tokens, kMostBatch)) +
         std::min(std::max<int64_t>(d.tokens, 1) * token, std::max(kBatchBytes, token)) + 4 * 256;
}

}  // namespace kdelta::mla_cuda
