// Sizes and scratch of the chunk schedule, apart from its vector code so that any processor can plan for it.
#pragma once

#include "kdelta/ops/kda/cpu_inputs.h"

namespace kdelta::kda_chunk {
inline namespace KDELTA_KDA_ISA {

using kda_cpu::Carver;
using kda_cpu::Task;

inline constexpr int64_t C = 16;
inline constexpr int64_t kBlocks = kKdaChunk / C;
// Two vectors of value channels: their fp32 state (16 KB at K = 128) and its 16-bit copy (8 KB) stay in L1.
inline constexpr int64_t W = 32;
// Tokens whose scores are summed pair by pair; beyond, tokens meet four by four.
inline constexpr int64_t kGroup = 4;

// The tokens of one block in fp32, on their way to a Block. One set serves all blocks and stays in L1.
struct Rows {
  int64_t K = 0, Kp = 0;
  float *q = nullptr, *k = nullptr, *decay = nullptr;     // [C, Kp] q and k as given, exp(g)
  float *q_factor = nullptr, *k_factor = nullptr;         // [C] what normalises them; q's carries the scale
  float* keys = nullptr;                                  // [C, Kp] normalised keys times the decays after them
  float *kd = nullptr, *qd = nullptr;                     // [kGroup, Kp] k and q of a group times the decays up to them
  float *group_decay = nullptr, *decay_so_far = nullptr;  // [Kp]

  KDELTA_INLINE void carve(Carver& c, int64_t width_k) {
    K = width_k, Kp = kda_cpu::padded(width_k);
    for (float** p : {&q, &k, &decay, &keys}) *p = c.take<float>(C * Kp);
    for (float** p : {&q_factor, &k_factor}) *p = c.take<float>(C);
    for (float** p : {&kd, &qd}) *p = c.take<float>(kGroup * Kp);
    for (float** p : {&group_decay, &decay_so_far}) *p = c.take<float>(Kp);
  }
};

// What the value channels of a block share.
struct Block {
  float *low = nullptr, *mix = nullptr;   // [C, C] -diag(b) A and M; row i holds columns j < i, mix also j = i
  uint32_t *kd = nullptr, *qd = nullptr;  // [2, C, Kp/2] pairs of channels; the second part is the AMX form's alone
  float *kd_scale = nullptr, *qd_scale = nullptr, *beta = nullptr;  // [C]
  uint32_t* kg = nullptr;                                           // [C/2, Kp] pairs of tokens; AMX: [2, Kp, C]
  float *kg_scale = nullptr, *decay = nullptr;                      // [Kp]; decay = P_last

  KDELTA_INLINE void carve(Carver& c, int64_t Kp) {
    low = c.take<float>(C * C);
    mix = c.take<float>(C * C);
    kd = c.take<uint32_t>(C * Kp);
    qd = c.take<uint32_t>(C * Kp);
    kd_scale = c.take<float>(C);
    qd_scale = c.take<float>(C);
    beta = c.take<float>(C);
    kg = c.take<uint32_t>(2 * C * Kp);
    kg_scale = c.take<float>(Kp);
    decay = c.take<float>(Kp);
  }
};

// W value channels of the state.
struct Panel {
  float* s = nullptr;        // [Kp, W] S^T
  uint32_t* s16 = nullptr;   // [2, Kp/2, W] pairs of channels
  float* s_scale = nullptr;  // [W]

  KDELTA_INLINE void carve(Carver& c, int64_t Kp, int64_t width) {
    s = c.take<float>(Kp * width);
    s16 = c.take<uint32_t>(Kp * width);
    s_scale = c.take<float>(width);
  }
};

// U of one block and panel.
struct Changes {
  float *u = nullptr, *sum = nullptr;  // [C, W]; [W] sums of squares over the tokens
  uint32_t* pairs = nullptr;           // [2, C, W] pairs of tokens, AMX

  KDELTA_INLINE void carve(Carver& c) {
    u = c.take<float>(C * W);
    sum = c.take<float>(W);
    pairs = c.take<uint32_t>(2 * C * W);
  }
};

struct Scratch {
  Rows rows;
  Block block[kBlocks];
  Panel panels;  // all of them, one after the other
  Changes changes;
  Panel snap;  // a copy on its way to a snapshot slot, with the part of a block before it
  Block snap_block;
  Changes snap_changes;
  int64_t Vp = 0;
  bf16* v = nullptr;      // [64, Vp] of one chunk
  bf16* out = nullptr;    // [C, W] in place of rows that end early
  float* read = nullptr;  // [2, C, W] kd S and qd S, AMX

  KDELTA_INLINE void carve(Carver& c, int64_t K, int64_t width) {
    rows.carve(c, K);
    Vp = kda_cpu::padded(width);
    for (Block& b : block) b.carve(c, rows.Kp);
    panels.carve(c, rows.Kp, Vp);
    changes.carve(c);
    snap.carve(c, rows.Kp, W);
    snap_block.carve(c, rows.Kp);
    snap_changes.carve(c);
    v = c.take<bf16>(kKdaChunk * Vp);
    out = c.take<bf16>(C * W);
    read = c.take<float>(2 * C * W);
  }
  KDELTA_INLINE Panel panel(int64_t column) const {
    return {panels.s + column * rows.Kp, panels.s16 + column * rows.Kp, panels.s_scale + column};
  }
};

}  // namespace KDELTA_KDA_ISA
}  // namespace kdelta::kda_chunk
