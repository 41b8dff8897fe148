// Sizes and scratch of the chunk schedule, apart from its vector code so that any processor can plan for it.
#pragma once

#include "kdelta/ops/kda/cpu_inputs.h"

namespace kdelta::kda_chunk {
inline namespace KDELTA_KDA_ISA {

using kda_cpu::Carver;
using kda_cpu::Task;
using kda_cpu::Tokens;

inline constexpr int64_t C = 16;
inline constexpr int64_t kBlocks = kKdaChunk / C;
// Two vectors of value channels: their fp32 state (16 KB at K = 128), its 16-bit copy (8 KB) and the tokens stay in L1.
inline constexpr int64_t W = 32;

// What the value channels of a block share.
struct Block {
  float *low = nullptr, *mix = nullptr;   // [C, C] -diag(b) A and M; row i holds columns j < i, mix also j = i
  uint32_t *kd = nullptr, *qd = nullptr;  // [2, C, Kp/2] pairs of channels; the second part is the AMX form's alone
  float *kd_scale = nullptr, *qd_scale = nullptr;  // [C]
  uint32_t* kg = nullptr;                          // [C/2, Kp] pairs of tokens; AMX: [2, Kp, C]
  float *kg_scale = nullptr, *decay = nullptr;     // [Kp]; decay = P_last

  KDELTA_INLINE void carve(Carver& c, int64_t Kp) {
    low = c.take<float>(C * C);
    mix = c.take<float>(C * C);
    kd = c.take<uint32_t>(C * Kp);
    qd = c.take<uint32_t>(C * Kp);
    kd_scale = c.take<float>(C);
    qd_scale = c.take<float>(C);
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

struct Scratch {
  Tokens tokens;
  Block block[kBlocks];
  Panel panels;                           // all of them, one after the other
  Panel snap;                             // a copy on its way to a snapshot slot
  Block snap_block;                       // the part of a block before a snapshot: kg and decay only
  float* rows = nullptr;                  // [C + 1, Kp] keys or factors on their way to scores and 16 bits
  float *u = nullptr, *snap_u = nullptr;  // [C, W]
  uint32_t* u16 = nullptr;                // [2, C, W] pairs of tokens, AMX

  KDELTA_INLINE void carve(Carver& c, int64_t K, int64_t width) {
    tokens.carve(c, K, width);
    for (Block& b : block) b.carve(c, tokens.Kp);
    panels.carve(c, tokens.Kp, tokens.Vp);
    snap.carve(c, tokens.Kp, W);
    snap_block.carve(c, tokens.Kp);
    rows = c.take<float>((C + 1) * tokens.Kp);
    u = c.take<float>(C * W);
    snap_u = c.take<float>(C * W);
    u16 = c.take<uint32_t>(2 * C * W);
  }
  KDELTA_INLINE Panel panel(int64_t column) const {
    return {panels.s + column * tokens.Kp, panels.s16 + column * tokens.Kp, panels.s_scale + column};
  }
};

}  // namespace KDELTA_KDA_ISA
}  // namespace kdelta::kda_chunk
