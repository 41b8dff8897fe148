// The chunk schedule's data between its kernels. A chunk is 64 tokens of one sequence; its *record*, one for each head,
// holds the factors of
//   U = U0 - W S,  O = Q S + A U,  S <- D S + K^T U      (S as [K, V] here; the kernels hold its transpose)
// A *segment* is a run of chunks of one sequence. plan -> factors (token-parallel) -> scan (what each segment does to a
// state: h and M of S -> M^T S + h; only where a sequence has several) -> outputs (start states composed, chain and
// outputs) -> finish (rows whose numbers left the range of fp16, snapshots inside a chunk).
#pragma once

#include <cstdint>

namespace kdelta::kda_cuda {

constexpr int kChunkTokens = 64;

// Byte offsets in a record. Tiles are fp16 [rows][64 columns] of 128-byte swizzled rows, 128 columns as two tiles of 8
// KB one after the other. U0 is in the order of the consumer's registers, 8 KB for 64 value channels.
constexpr int kRecordW = 0, kRecordK = 16384, kRecordD = 32768, kRecordQ = 33792, kRecordA = 50176, kRecordU = 58368,
              kRecordBytes = 74752;
constexpr int kScanBytes = kRecordQ;  // W, K and D

struct Chunk {
  int sequence, begin, tokens, unused;
};
struct Segment {
  int sequence, chunk, chunks, index;  // index: place in its sequence
  int count;                           // segments of its sequence
  int flags;
  int begin, len;  // tokens
};
enum SegmentFlags { kZero = 1, kSnapshots = 2 };
struct ScanItem {
  int segment;
  int matrix;  // 0: h, 1: M
};
struct Repair {
  int sequence, head, half;  // 64 value rows to be run token by token
};

struct alignas(8) SequenceSlots {
  int first,
      source;  // of column 0 (-1: a padded row, -2: a faulty one, -3: an empty one), of the start state (0: fresh)
};
struct alignas(16) Prefix {
  int chunks, segments, scans, unused;  // before the sequence
};

struct Plan {
  int chunks, segments, scans, repairs;
};

struct Workspace {
  Plan* plan;
  SequenceSlots* sequence;  // [n]
  Prefix* prefix;           // [n + 1]
  Chunk* chunk;             // [chunk_cap]
  Segment* segment;         // [segment_cap]
  ScanItem* scan;           // [scan_cap]
  Repair* repair;           // [repair_cap]
  uint32_t* repaired;       // [n, H, 2] a repair is listed
  int* chunk_snapshot;      // [chunk_cap] first snapshot whose last whole chunk this is, -1: none
  int* sequence_snapshot;   // [n] first snapshot within the first chunk
  int* snapshot_next;       // [snapshots] the next of the chain, -1: none, -2: a snapshot that is not taken
  char* record;             // [H, chunk_cap] records
  float* h;                 // [segment_cap, H, V, K]; the last segment's place keeps the sequence's start state
  char* M;                  // [segment_cap, H] fp16 parts, high and low: [K][K] tiles of 64 rows
  int chunk_cap, segment_cap, scan_cap, per_segment;
  int repair_blocks;
};
constexpr int kNotTaken = -2;
constexpr int kMatrixBytes = 65536;

// Hands out pieces of the workspace; with no memory behind it, it measures.
struct Carver {
  char* base;
  int64_t used = 0;
  template <class T>
  T* take(int64_t count) {
    T* p = reinterpret_cast<T*>(base + used);
    used += (count * static_cast<int64_t>(sizeof(T)) + 1023) / 1024 * 1024;
    return p;
  }
};

inline int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// The scan of P segments of a sequence keeps 2 P - 3 blocks a head busy, the outputs P; both should fit one wave.
inline int default_segments(int64_t H, int64_t T, int multiprocessors) {
  int64_t P = (multiprocessors / H + 3) / 2;
  if (P * H > multiprocessors) P = 1;
  const int64_t most = T / (4 * kChunkTokens);
  if (P > most) P = most;
  return static_cast<int>(P < 1 ? 1 : P > 12 ? 12 : P);
}

// Lays the workspace out for a call's capacities and cuts sequences into at most `segments` segments; returns its
// bytes.
inline int64_t layout_workspace(Workspace& w, void* base, int64_t T, int64_t n_prefill, int64_t H, int64_t snapshots,
                                int segments) {
  const int64_t n = n_prefill < 1 ? 1 : n_prefill;
  const int64_t chunks = n == 1 ? divide_up(T, kChunkTokens) : T / kChunkTokens + n;
  w.chunk_cap = static_cast<int>(chunks < 1 ? 1 : chunks);
  w.per_segment = static_cast<int>(divide_up(w.chunk_cap, segments));
  w.segment_cap = static_cast<int>(divide_up(w.chunk_cap, w.per_segment) + (n == 1 ? 0 : n));
  w.scan_cap = 2 * w.segment_cap - 3;
  Carver c{static_cast<char*>(base)};
  w.plan = c.take<Plan>(1);
  w.sequence = c.take<SequenceSlots>(n);
  w.prefix = c.take<Prefix>(n + 1);
  w.chunk = c.take<Chunk>(w.chunk_cap);
  w.segment = c.take<Segment>(w.segment_cap);
  w.scan = c.take<ScanItem>(2 * w.segment_cap);
  w.repair = c.take<Repair>(n * H * 2);
  w.repaired = c.take<uint32_t>(n * H * 2);
  w.chunk_snapshot = c.take<int>(w.chunk_cap);
  w.sequence_snapshot = c.take<int>(n);
  w.snapshot_next = c.take<int>(snapshots);
  w.h = c.take<float>(segments == 1 ? 0 : w.segment_cap * H * 16384);
  w.M = c.take<char>(segments == 1 ? 0 : w.segment_cap * H * kMatrixBytes);
  w.record = c.take<char>(w.chunk_cap * H * kRecordBytes);
  return c.used;
}

}  // namespace kdelta::kda_cuda
