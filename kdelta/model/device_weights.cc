#include "kdelta/model/device_weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>

#include "kdelta/core/check.h"
#include "kdelta/core/moves.h"
#include "kdelta/model/dummy.h"

namespace kdelta {
namespace {

constexpr int64_t kAlign = 256;        // of every matrix and its scales, for wide loads and tensor maps
constexpr int64_t kWindow = 64 << 20;  // bytes that travel at once
constexpr int64_t kBlock = 1 << 20;    // that a thread gathers at once

int64_t aligned(int64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

int64_t row_bytes_of(const Matrix& m) {
  return (m.cols * dtype_bits(m.dtype) + 7) / 8;
}

}  // namespace

std::vector<DeviceWeights::Piece> DeviceWeights::pieces_of(const PlacedSpec& placed, int64_t* offset) {
  std::vector<Piece> pieces;
  const auto add = [&](const void* data, int64_t row_bytes, int64_t rows, int64_t stride) {
    pieces.push_back({*offset, row_bytes, rows, static_cast<const char*>(data), stride});
    *offset += aligned(row_bytes * rows);
  };
  if (Matrix* const* target = std::get_if<Matrix*>(&placed.spec.target)) {
    const Matrix& m = **target;
    add(m.data, row_bytes_of(m), m.rows, m.row_bytes);
    if (m.is_mx()) add(m.scale, m.cols / kMxBlock, m.rows, m.scale_row_bytes);
  } else {
    const View<const float>& v = *std::get<View<const float>*>(placed.spec.target);
    add(v.data, v.shape.numel() * 4, 1, v.shape.numel() * 4);
  }
  return pieces;
}

int64_t DeviceWeights::bytes(const std::vector<PlacedSpec>& specs) {
  int64_t offset = 0;
  for (const PlacedSpec& placed : specs) (void)pieces_of(placed, &offset);
  return offset;
}

DeviceWeights::Place DeviceWeights::point(const PlacedSpec& placed, std::span<const Piece> pieces) const {
  char* base = static_cast<char*>(buffer_.data());
  const Place place{base + pieces[0].offset,
                    pieces.size() > 1 ? reinterpret_cast<const uint8_t*>(base + pieces[1].offset) : nullptr};
  if (Matrix* const* target = std::get_if<Matrix*>(&placed.spec.target)) {
    Matrix& m = **target;
    m.data = place.data;
    m.row_bytes = pieces[0].row_bytes;
    m.scale = place.scale;
    m.scale_row_bytes = pieces.size() > 1 ? pieces[1].row_bytes : 0;
  } else {
    std::get<View<const float>*>(placed.spec.target)->data = static_cast<const float*>(place.data);
  }
  return place;
}

DeviceWeights::DeviceWeights(Device device, std::vector<PlacedSpec> specs, int threads, const Progress& progress)
    : device_(device), threads_(threads), specs_(std::move(specs)), buffer_(device, bytes(specs_)) {
  std::vector<Piece> all;
  int64_t offset = 0;
  for (const PlacedSpec& placed : specs_) {
    offsets_.push_back(offset);
    for (const Piece& piece : pieces_of(placed, &offset)) all.push_back(piece);
  }
  upload(all, threads, progress);
  for (size_t i = 0; i < specs_.size(); ++i) {
    offset = offsets_[i];
    places_.push_back(point(specs_[i], pieces_of(specs_[i], &offset)));
  }
}

DeviceWeights::DeviceWeights(Device device, std::vector<PlacedSpec> specs,
                             const std::function<Uniform(const PlacedSpec&)>& values)
    : device_(device), specs_(std::move(specs)), buffer_(device, bytes(specs_)) {
  int64_t offset = 0;
  Stream& stream = default_stream(device);
  std::optional<HostBuffer> window;
  for (const PlacedSpec& placed : specs_) {
    offsets_.push_back(offset);
    const std::vector<Piece> pieces = pieces_of(placed, &offset);
    places_.push_back(point(placed, pieces));
    const Uniform u = values(placed);
    if (pieces.size() > 1) {
      if (!window) window.emplace(device_, kBlock);
      make_codes(stream, std::get<Matrix*>(placed.spec.target)->dtype, u, pieces, *window);
      continue;
    }
    const bool matrix = std::holds_alternative<Matrix*>(placed.spec.target);
    const DType dtype = matrix ? std::get<Matrix*>(placed.spec.target)->dtype : DType::f32;
    fill_uniform(&stream, static_cast<char*>(buffer_.data()) + pieces[0].offset, dtype,
                 pieces[0].bytes() / dtype_bytes(dtype), u.center, u.scale, u.seed);
  }
  stream.synchronize();
}

// On the host, as codes repeat soon: the copy is what takes time.
void DeviceWeights::make_codes(Stream& stream, DType dtype, const Uniform& values, std::span<const Piece> pieces,
                               const HostBuffer& window) {
  char* base = static_cast<char*>(buffer_.data());
  for (int64_t begin = 0; begin < pieces[0].bytes(); begin += window.bytes()) {
    const int64_t count = std::min(window.bytes(), pieces[0].bytes() - begin);
    dummy_codes(dtype, values.seed, begin, {window.as<uint8_t>(), static_cast<size_t>(count)});
    copy_async(stream, base + pieces[0].offset + begin, window.as<char>(), count);
    stream.synchronize();
  }
  std::memset(window.as<char>(), dummy_scale(dtype, values),
              static_cast<size_t>(std::min(window.bytes(), pieces[1].bytes())));
  for (int64_t begin = 0; begin < pieces[1].bytes(); begin += window.bytes())
    copy_async(stream, base + pieces[1].offset + begin, window.as<char>(),
               std::min(window.bytes(), pieces[1].bytes() - begin));
  stream.synchronize();
}

void DeviceWeights::refresh() {
  std::vector<Piece> changed;
  std::vector<size_t> again;
  for (size_t i = 0; i < specs_.size(); ++i) {
    Matrix* const* matrix = std::get_if<Matrix*>(&specs_[i].spec.target);
    const void* now = matrix != nullptr ? (*matrix)->data : std::get<View<const float>*>(specs_[i].spec.target)->data;
    if (now == places_[i].data) continue;
    int64_t offset = offsets_[i];
    for (const Piece& piece : pieces_of(specs_[i], &offset)) changed.push_back(piece);
    KDELTA_CHECK(offset <= (i + 1 < offsets_.size() ? offsets_[i + 1] : buffer_.bytes()), "a weight of another size");
    again.push_back(i);
  }
  upload(changed, threads_, {});
  for (const size_t i : again) {
    int64_t offset = offsets_[i];
    (void)point(specs_[i], pieces_of(specs_[i], &offset));
  }
}

namespace {

// [begin, end) of a piece's bytes, its rows one behind the other, from where the host has them.
template <class Piece>
void gather(const Piece& piece, int64_t begin, int64_t end, char* to) {
  while (begin < end) {
    const int64_t row = begin / piece.row_bytes, in_row = begin % piece.row_bytes;
    const bool dense = piece.stride == piece.row_bytes;
    const int64_t count = dense ? end - begin : std::min(end - begin, piece.row_bytes - in_row);
    std::memcpy(to, piece.host + row * piece.stride + in_row, static_cast<size_t>(count));
    begin += count, to += count;
  }
}

}  // namespace

// The buffer goes by in windows: threads gather one in pinned memory while the one before travels. What lies between
// pieces, and is not to change, splits a window.
void DeviceWeights::upload(std::span<const Piece> pieces, int threads, const Progress& progress) {
  if (pieces.empty()) return;
  Stream& stream = default_stream(device_);
  ThreadPool team(threads);
  int64_t total = 0, done = 0;
  for (const Piece& p : pieces) total += p.bytes();
  HostBuffer windows[] = {{device_, std::min(kWindow, aligned(total + kAlign * std::ssize(pieces)))},
                          {device_, std::min(kWindow, aligned(total + kAlign * std::ssize(pieces)))}};
  Event sent[] = {Event(device_), Event(device_)};
  struct Part {
    const Piece* piece;
    int64_t begin, end, at;  // bytes of the piece; where they lie in the window
  };
  std::vector<Part> parts;
  int turn = 0;
  const auto send = [&] {
    char* window = windows[turn].as<char>();
    sent[turn].synchronize();
    std::atomic<size_t> next = 0;
    auto work = [&](int) {
      for (size_t i = next++; i < parts.size(); i = next++)
        gather(*parts[i].piece, parts[i].begin, parts[i].end, window + parts[i].at);
    };
    team.run(work);
    // Neighbours in the window that are neighbours on the device go together.
    for (size_t i = 0; i < parts.size();) {
      const int64_t there = parts[i].piece->offset + parts[i].begin, here = parts[i].at;
      size_t j = i;
      int64_t bytes = 0;
      while (j < parts.size() && parts[j].piece->offset + parts[j].begin - there == parts[j].at - here) {
        bytes = parts[j].at - here + parts[j].end - parts[j].begin;
        done += parts[j].end - parts[j].begin;
        ++j;
      }
      copy_async(stream, static_cast<char*>(buffer_.data()) + there, window + here, bytes);
      i = j;
    }
    stream.record(sent[turn]);
    parts.clear();
    turn = 1 - turn;
    if (progress) progress(done, total);
  };
  const int64_t room = windows[0].bytes();
  int64_t used = 0;
  for (const Piece& piece : pieces) {
    for (int64_t begin = 0; begin < piece.bytes();) {
      if (used == room) send(), used = 0;
      const int64_t count = std::min({piece.bytes() - begin, room - used, kBlock});
      parts.push_back({&piece, begin, begin + count, used});
      begin += count, used += count;
    }
    used = std::min(room, aligned(used));
  }
  if (!parts.empty()) send();
  stream.synchronize();
}

}  // namespace kdelta
