// The weights of a model on a CUDA device, in one piece of its memory: rows without gaps, matrices in the order of the
// specs, so that the experts of a layer lie at one distance. Addresses never change, so what was captured stays right
// when the values do.
#pragma once

#include <functional>
#include <vector>

#include "kdelta/core/buffer.h"
#include "kdelta/core/stream.h"
#include "kdelta/core/threads.h"
#include "kdelta/model/weight_reader.h"

namespace kdelta {

class DeviceWeights {
 public:
  using Progress = std::function<void(int64_t done, int64_t total)>;

  // What bound weights (of shapes alone, too) take on a device.
  static int64_t bytes(const std::vector<PlacedSpec>& specs);

  DeviceWeights() = default;
  // Copies what the targets of the specs point at, in host memory, and points them at the copies. The host's side is
  // read by a team of `threads` (0: every CPU), through pinned memory. Throws Error(out_of_memory) before anything is
  // changed.
  DeviceWeights(Device device, std::vector<PlacedSpec> specs, int threads, const Progress& progress);
  // Weights that are made there: `values` says those of each spec, which is bound to shapes alone.
  struct Uniform {
    float center = 0, scale = 1;
    uint64_t seed = 0;
  };
  DeviceWeights(Device device, std::vector<PlacedSpec> specs, const std::function<Uniform(const PlacedSpec&)>& values);

  bool empty() const { return specs_.empty(); }
  // After an update of the host's weights: what points to host memory again is copied to where it was, and pointed
  // back. The formats are those of before.
  void refresh();

 private:
  // A target's bytes: rows of the host's, and where they lie in the buffer.
  struct Piece {
    int64_t offset = 0, row_bytes = 0, rows = 0;
    const char* host = nullptr;
    int64_t stride = 0;
    int64_t bytes() const { return row_bytes * rows; }
  };
  struct Place {
    const void* data = nullptr;
    const uint8_t* scale = nullptr;
  };
  static std::vector<Piece> pieces_of(const PlacedSpec& placed, int64_t* offset);
  Place point(const PlacedSpec& placed, std::span<const Piece> pieces) const;
  void make_codes(Stream& stream, DType dtype, const Uniform& values, std::span<const Piece> pieces,
                  const HostBuffer& window);
  void upload(std::span<const Piece> pieces, int threads, const Progress& progress);

  Device device_;
  int threads_ = 1;
  std::vector<PlacedSpec> specs_;
  std::vector<Place> places_;     // by spec
  std::vector<int64_t> offsets_;  // by spec: of its first piece
  Buffer buffer_;
};

}  // namespace kdelta
