/* The operators in C: views in, views out, no copy. What an operator computes, and every rule about its arguments, is
 * written in the header that its comment names; a shape there is a shape here.
 *
 * Views (DLTensor) are only looked at during the call. On the CPU they lie on kDLCPU or kDLCUDAHost, otherwise, all of
 * them, on the context's CUDA device: kDLCUDA or kDLCUDAManaged of its number; pinned host memory is refused there. The
 * thread's current CUDA device stays what it was. "f32|bf16" lists the accepted dtypes. Strides are free where the
 * operator's header says so, never negative; a view that is written may not map two of its elements to one address, and
 * may not overlap another argument (but for the in-place forms that are named). An optional view may be NULL.
 *
 * Each operator has a second function, NAME_workspace, that takes the same arguments (data pointers may be NULL there)
 * and says how many bytes of scratch they need; it grows with every size, so the largest shapes give enough for all.
 *
 *   kdelta_kda_args a = {.struct_size = sizeof(a), .q = &q, ...};
 *   kdelta_launch launch = {.struct_size = sizeof(launch)};
 *   kdelta_kda_workspace(context, &a, &launch.workspace_bytes);
 *   launch.workspace = malloc(launch.workspace_bytes);
 *   if (kdelta_kda(context, &a, &launch) != KDELTA_OK) puts(kdelta_last_error()); */
#ifndef KDELTA_API_C_OPS_H_
#define KDELTA_API_C_OPS_H_

#include "kdelta/api/c_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which tokens belong to whom and which slot of a state pool each sequence owns (kdelta/ops/common/sequences.h). N
 * sequences lie behind one another in T rows, those of a prefill first, then decode rows of one token or of one and its
 * drafts. Slot 0 belongs to nobody and is never touched; -1 marks a padded row. */
typedef struct kdelta_sequences {
  const DLTensor* cu KDELTA_DEFAULT(nullptr);       /* [N+1] i32, from 0 to at most T; rows behind cu[N] become zeros */
  const DLTensor* slot KDELTA_DEFAULT(nullptr);     /* [N, columns] i32 */
  const DLTensor* accepted KDELTA_DEFAULT(nullptr); /* [N] i32 in 1..columns: tokens kept of the last verification */
  const DLTensor* fresh KDELTA_DEFAULT(nullptr);    /* [N] u8 or bool: 1 starts from zero, whatever the slot holds */
  const DLTensor* snapshot KDELTA_DEFAULT(nullptr); /* [Q, 3] i32 (sequence, tokens, slot), optional: where a prefill
                                                       leaves its state after so many tokens */
  int32_t n_prefill KDELTA_DEFAULT(0);
  int32_t n_decode KDELTA_DEFAULT(0);
  int64_t max_len KDELTA_DEFAULT(0); /* CUDA: no sequence is longer; the CPU reads cu */
} kdelta_sequences;

typedef enum kdelta_kda_gate { KDELTA_GATE_SOFTPLUS = 0, KDELTA_GATE_BOUNDED = 1 } kdelta_kda_gate;
typedef enum kdelta_kda_beta { KDELTA_BETA_RAW = 0, KDELTA_BETA_PREPROCESSED = 1 } kdelta_kda_beta;
typedef enum kdelta_kda_norm { KDELTA_NORM_L2 = 0, KDELTA_NORM_NONE = 1 } kdelta_kda_norm;

/* Kimi Delta Attention: prefill in chunks, single steps and verification of drafts in one call (kdelta/ops/kda/kda.h).
 */
typedef struct kdelta_kda_args {
  size_t struct_size KDELTA_DEFAULT(sizeof(kdelta_kda_args));
  const DLTensor* q KDELTA_DEFAULT(nullptr);       /* [T, H, K] f32|bf16 */
  const DLTensor* k KDELTA_DEFAULT(nullptr);       /* [T, H, K] as q */
  const DLTensor* v KDELTA_DEFAULT(nullptr);       /* [T, H, V] as q */
  const DLTensor* gate KDELTA_DEFAULT(nullptr);    /* [T, H, K] f32|bf16, before the gate function */
  const DLTensor* beta KDELTA_DEFAULT(nullptr);    /* [T, H] f32|bf16 */
  const DLTensor* a_log KDELTA_DEFAULT(nullptr);   /* [H] f32 */
  const DLTensor* dt_bias KDELTA_DEFAULT(nullptr); /* [H, K] f32 */
  int32_t gate_kind KDELTA_DEFAULT(KDELTA_GATE_BOUNDED);
  float lower_bound KDELTA_DEFAULT(-5.0f); /* bounded gate: in [-5, 0) */
  int32_t beta_kind KDELTA_DEFAULT(KDELTA_BETA_RAW);
  int32_t norm_kind KDELTA_DEFAULT(KDELTA_NORM_L2);
  float scale KDELTA_DEFAULT(0); /* of q; usually K^-0.5 */
  kdelta_sequences seq KDELTA_DEFAULT({});
  const DLTensor* state KDELTA_DEFAULT(nullptr);   /* written: [slots, H, V, K] f32|bf16 */
  const DLTensor* records KDELTA_DEFAULT(nullptr); /* written, optional: [slots, columns-1, H, 2K+V] f32; NULL: each
                                                      draft column has a slot of its own */
  const DLTensor* out KDELTA_DEFAULT(nullptr);     /* written: [T, H, V] as v */
} kdelta_kda_args;
KDELTA_API kdelta_status kdelta_kda(kdelta_context* context, const kdelta_kda_args* args, const kdelta_launch* launch);
KDELTA_API kdelta_status kdelta_kda_workspace(kdelta_context* context, const kdelta_kda_args* args, size_t* bytes);

/* Applies the records of accepted drafts to the states in their slots (kda_replay of kdelta/ops/kda/kda.h). */
typedef struct kdelta_kda_replay_args {
  size_t struct_size KDELTA_DEFAULT(sizeof(kdelta_kda_replay_args));
  const DLTensor* state KDELTA_DEFAULT(nullptr);    /* written: [slots, H, V, K] f32|bf16 */
  const DLTensor* records KDELTA_DEFAULT(nullptr);  /* [slots, columns-1, H, 2K+V] f32 */
  const DLTensor* slot KDELTA_DEFAULT(nullptr);     /* [N] i32 */
  const DLTensor* accepted KDELTA_DEFAULT(nullptr); /* [N] i32 in 1..columns */
} kdelta_kda_replay_args;
KDELTA_API kdelta_status kdelta_kda_replay(kdelta_context* context, const kdelta_kda_replay_args* args,
                                           const kdelta_launch* launch);
KDELTA_API kdelta_status kdelta_kda_replay_workspace(kdelta_context* context, const kdelta_kda_replay_args* args,
                                                     size_t* bytes);

/* A decode step of a KDA layer between its projections, one token a sequence: short_conv with SiLU on q | k | v, kda on
 * what comes of it, gated_norm of that (kdelta/ops/kda/decode.h). C = H (2 K + V). One kernel on a CUDA device that has
 * one for the sizes, which others refuse; on the CPU the three operators, whose bits these are. */
typedef struct kdelta_kda_decode_args {
  size_t struct_size KDELTA_DEFAULT(sizeof(kdelta_kda_decode_args));
  const DLTensor* qkv KDELTA_DEFAULT(nullptr);         /* [T, C] f32|bf16, q | k | v before the convolution */
  const DLTensor* conv_weight KDELTA_DEFAULT(nullptr); /* [W, C] f32, W in 2..4 */
  const DLTensor* decay KDELTA_DEFAULT(nullptr);       /* [T, H, K] f32|bf16, the gate of kda */
  const DLTensor* beta KDELTA_DEFAULT(nullptr);        /* [T, H] f32|bf16 */
  const DLTensor* a_log KDELTA_DEFAULT(nullptr);       /* [H] f32 */
  const DLTensor* dt_bias KDELTA_DEFAULT(nullptr);     /* [H, K] f32 */
  int32_t gate_kind KDELTA_DEFAULT(KDELTA_GATE_BOUNDED);
  float lower_bound KDELTA_DEFAULT(-5.0f); /* bounded gate: in [-5, 0) */
  int32_t beta_kind KDELTA_DEFAULT(KDELTA_BETA_RAW);
  int32_t norm_kind KDELTA_DEFAULT(KDELTA_NORM_L2);
  float scale KDELTA_DEFAULT(0);                       /* of q; usually K^-0.5 */
  const DLTensor* gate KDELTA_DEFAULT(nullptr);        /* [T, H, V] f32|bf16, the gate of gated_norm, a sigmoid */
  const DLTensor* norm_weight KDELTA_DEFAULT(nullptr); /* [V] f32 */
  float norm_eps KDELTA_DEFAULT(0);
  kdelta_sequences seq KDELTA_DEFAULT({});        /* decode rows alone, of one column; snapshot is not looked at */
  const DLTensor* state KDELTA_DEFAULT(nullptr);  /* written: [slots, H, V, K] f32|bf16 */
  const DLTensor* window KDELTA_DEFAULT(nullptr); /* written: [slots, R, C] as qkv, R >= W-1 */
  const DLTensor* out KDELTA_DEFAULT(nullptr);    /* written: [T, H, V] as qkv; zeros in rows of nobody */
} kdelta_kda_decode_args;
KDELTA_API kdelta_status kdelta_kda_decode(kdelta_context* context, const kdelta_kda_decode_args* args,
                                           const kdelta_launch* launch);
KDELTA_API kdelta_status kdelta_kda_decode_workspace(kdelta_context* context, const kdelta_kda_decode_args* args,
                                                     size_t* bytes);

/* Causal depthwise convolution with a carried window, prefill and update (kdelta/ops/short_conv/short_conv.h). */
typedef struct kdelta_short_conv_args {
  size_t struct_size KDELTA_DEFAULT(sizeof(kdelta_short_conv_args));
  const DLTensor* x KDELTA_DEFAULT(nullptr);      /* [T, C] f32|bf16 */
  const DLTensor* weight KDELTA_DEFAULT(nullptr); /* [W, C] f32, W in 2..4 */
  int32_t silu KDELTA_DEFAULT(1);                 /* 0: the sum as it is */
  kdelta_sequences seq KDELTA_DEFAULT({});
  const DLTensor* state KDELTA_DEFAULT(nullptr); /* written: [slots, R, C] as x, R >= W-1 + columns-1 */
  const DLTensor* out KDELTA_DEFAULT(nullptr);   /* written: [T, C] as x; or NULL and the three of split */
  const DLTensor* split[3] KDELTA_DEFAULT({});   /* written: [T, C/3] each as x */
} kdelta_short_conv_args;
KDELTA_API kdelta_status kdelta_short_conv(kdelta_context* context, const kdelta_short_conv_args* args,
                                           const kdelta_launch* launch);
KDELTA_API kdelta_status kdelta_short_conv_workspace(kdelta_context* context, const kdelta_short_conv_args* args,
                                                     size_t* bytes);

/* RMS norm of each head times a gate (kdelta/ops/gated_norm/gated_norm.h). out may be x itself. */
typedef struct kdelta_gated_norm_args {
  size_t struct_size KDELTA_DEFAULT(sizeof(kdelta_gated_norm_args));
  const DLTensor* x KDELTA_DEFAULT(nullptr);        /* [T, H, D] f32|bf16 */
  const DLTensor* gate KDELTA_DEFAULT(nullptr);     /* [T, H, D] f32|bf16 */
  const DLTensor* weight KDELTA_DEFAULT(nullptr);   /* [D] f32, optional */
  const DLTensor* bias KDELTA_DEFAULT(nullptr);     /* [D] f32, optional */
  const DLTensor* residual KDELTA_DEFAULT(nullptr); /* [T, H, D] f32|bf16, optional: added to x first */
  const DLTensor* sum_out KDELTA_DEFAULT(nullptr);  /* written, optional: [T, H, D] f32|bf16, x + residual */
  int32_t silu KDELTA_DEFAULT(0);                   /* 0: sigmoid of the gate, 1: SiLU */
  float eps KDELTA_DEFAULT(0);
  const DLTensor* live KDELTA_DEFAULT(nullptr); /* [1] i32, optional: rows from live[0] on become zeros */
  const DLTensor* out KDELTA_DEFAULT(nullptr);  /* written: [T, H, D] f32|bf16 */
} kdelta_gated_norm_args;
KDELTA_API kdelta_status kdelta_gated_norm(kdelta_context* context, const kdelta_gated_norm_args* args,
                                           const kdelta_launch* launch);
KDELTA_API kdelta_status kdelta_gated_norm_workspace(kdelta_context* context, const kdelta_gated_norm_args* args,
                                                     size_t* bytes);

/* Softmax mixture of block outputs and the running sum (kdelta/ops/attn_res/attn_res.h). */
typedef struct kdelta_attn_res_args {
  size_t struct_size KDELTA_DEFAULT(sizeof(kdelta_attn_res_args));
  const DLTensor* blocks KDELTA_DEFAULT(nullptr);       /* [B, T, D] f32|bf16; NULL with n = 0 */
  int64_t n KDELTA_DEFAULT(0);                          /* valid blocks, 0..B */
  const DLTensor* sum KDELTA_DEFAULT(nullptr);          /* [T, D] as blocks */
  const DLTensor* addend KDELTA_DEFAULT(nullptr);       /* [T, D] as blocks, optional: added to sum first */
  const DLTensor* sum_out KDELTA_DEFAULT(nullptr);      /* written: [T, D] as blocks, with addend: the new sum */
  const DLTensor* score_weight KDELTA_DEFAULT(nullptr); /* [D] f32 */
  float eps KDELTA_DEFAULT(0);
  const DLTensor* norm_weight KDELTA_DEFAULT(nullptr); /* [D] f32, optional: no norm behind the mixture */
  float norm_eps KDELTA_DEFAULT(0);
  const DLTensor* out KDELTA_DEFAULT(nullptr); /* written: [T, D] as blocks */
} kdelta_attn_res_args;
KDELTA_API kdelta_status kdelta_attn_res(kdelta_context* context, const kdelta_attn_res_args* args,
                                         const kdelta_launch* launch);
KDELTA_API kdelta_status kdelta_attn_res_workspace(kdelta_context* context, const kdelta_attn_res_args* args,
                                                   size_t* bytes);

typedef enum kdelta_activation_kind {
  KDELTA_SWIGLU = 0,
  KDELTA_SITU = 1,
  KDELTA_SIGMOID_GATE = 2
} kdelta_activation_kind;

/* Activations of two branches, SiTU among them (kdelta/ops/activation/activation.h). out may be gate or up itself. */
typedef struct kdelta_activation_args {
  size_t struct_size KDELTA_DEFAULT(sizeof(kdelta_activation_args));
  int32_t kind KDELTA_DEFAULT(KDELTA_SITU);
  float beta KDELTA_DEFAULT(4);                 /* SiTU: > 0 */
  float linear_beta KDELTA_DEFAULT(25);         /* SiTU: >= 0, 0: up is used as it is */
  const DLTensor* gate KDELTA_DEFAULT(nullptr); /* [T, N] f32|bf16 */
  const DLTensor* up KDELTA_DEFAULT(nullptr);   /* [T, N] f32|bf16 */
  const DLTensor* out KDELTA_DEFAULT(nullptr);  /* written: [T, N] f32|bf16 */
} kdelta_activation_args;
KDELTA_API kdelta_status kdelta_activation(kdelta_context* context, const kdelta_activation_args* args,
                                           const kdelta_launch* launch);
KDELTA_API kdelta_status kdelta_activation_workspace(kdelta_context* context, const kdelta_activation_args* args,
                                                     size_t* bytes);

/* Codes of MX formats lie in u8 (or the fp8 dtypes of DLPack): what they mean is said beside them. */
typedef enum kdelta_format {
  KDELTA_FORMAT_PLAIN = 0, /* what the dtype says */
  KDELTA_FORMAT_F8_E4M3 = 1,
  KDELTA_FORMAT_F8_E5M2 = 2,
  KDELTA_FORMAT_F4_E2M1 = 3
} kdelta_format;
typedef enum kdelta_scale_rule {
  KDELTA_SCALE_FLOOR = 0,
  KDELTA_SCALE_RCEIL = 1,
  KDELTA_SCALE_EVEN = 2
} kdelta_scale_rule;

/* To MXFP8 or MXFP4, SiTU before it if wanted (kdelta/ops/mx_quant/mx_quant.h). */
typedef struct kdelta_mx_quantize_args {
  size_t struct_size KDELTA_DEFAULT(sizeof(kdelta_mx_quantize_args));
  int32_t format KDELTA_DEFAULT(KDELTA_FORMAT_F8_E4M3);
  int32_t rule KDELTA_DEFAULT(KDELTA_SCALE_FLOOR);
  const DLTensor* x KDELTA_DEFAULT(nullptr);     /* [T, N], with situ [T, 2N], f32|bf16 */
  const DLTensor* codes KDELTA_DEFAULT(nullptr); /* written: [T, N] u8; MXFP4 [T, ceil(N/2)] */
  const DLTensor* scale KDELTA_DEFAULT(nullptr); /* written: [T, ceil(N/32)] u8, or that rounded up to even */
  int32_t situ KDELTA_DEFAULT(0);
  float beta KDELTA_DEFAULT(4);
  float linear_beta KDELTA_DEFAULT(25);
  int32_t activate_left KDELTA_DEFAULT(1);              /* the gate is the left half of x's columns */
  const DLTensor* group_counts KDELTA_DEFAULT(nullptr); /* [E] i64, optional: rows in use of each group */
} kdelta_mx_quantize_args;
KDELTA_API kdelta_status kdelta_mx_quantize(kdelta_context* context, const kdelta_mx_quantize_args* args,
                                            const kdelta_launch* launch);
KDELTA_API kdelta_status kdelta_mx_quantize_workspace(kdelta_context* context, const kdelta_mx_quantize_args* args,
                                                      size_t* bytes);

typedef struct kdelta_mx_dequantize_args {
  size_t struct_size KDELTA_DEFAULT(sizeof(kdelta_mx_dequantize_args));
  int32_t format KDELTA_DEFAULT(KDELTA_FORMAT_F8_E4M3);
  const DLTensor* codes KDELTA_DEFAULT(nullptr);
  const DLTensor* scale KDELTA_DEFAULT(nullptr);
  const DLTensor* out KDELTA_DEFAULT(nullptr); /* written: [T, N] f32|bf16 */
} kdelta_mx_dequantize_args;
KDELTA_API kdelta_status kdelta_mx_dequantize(kdelta_context* context, const kdelta_mx_dequantize_args* args,
                                              const kdelta_launch* launch);
KDELTA_API kdelta_status kdelta_mx_dequantize_workspace(kdelta_context* context, const kdelta_mx_dequantize_args* args,
                                                        size_t* bytes);

/* Accumulators of an int8 product through SiTU to int8 (kdelta/ops/dequant_situ/dequant_situ.h, which says what goes
 * together). */
typedef struct kdelta_dequant_situ_args {
  size_t struct_size KDELTA_DEFAULT(sizeof(kdelta_dequant_situ_args));
  const DLTensor* x KDELTA_DEFAULT(nullptr); /* [T, 2N] i8|i32|bf16 */
  float beta KDELTA_DEFAULT(4);
  float linear_beta KDELTA_DEFAULT(25);
  int32_t activate_left KDELTA_DEFAULT(1);
  const DLTensor* weight_scale KDELTA_DEFAULT(nullptr);     /* [2N], [1] or [E, 2N] f32 */
  const DLTensor* activation_scale KDELTA_DEFAULT(nullptr); /* [T] or [T, 1] f32 */
  const DLTensor* bias KDELTA_DEFAULT(nullptr);             /* as weight_scale */
  int32_t dynamic KDELTA_DEFAULT(1);
  const DLTensor* quant_scale KDELTA_DEFAULT(nullptr);  /* [N] or [1] f32, fixed mode */
  const DLTensor* quant_offset KDELTA_DEFAULT(nullptr); /* as quant_scale */
  const DLTensor* group_counts KDELTA_DEFAULT(nullptr); /* [E] i64 */
  const DLTensor* y KDELTA_DEFAULT(nullptr);            /* written: [T, N] i8 */
  const DLTensor* scale KDELTA_DEFAULT(nullptr);        /* written: [T] f32, dynamic mode */
} kdelta_dequant_situ_args;
KDELTA_API kdelta_status kdelta_dequant_situ(kdelta_context* context, const kdelta_dequant_situ_args* args,
                                             const kdelta_launch* launch);
KDELTA_API kdelta_status kdelta_dequant_situ_workspace(kdelta_context* context, const kdelta_dequant_situ_args* args,
                                                       size_t* bytes);

/* Where the latents of a sequence lie: pages of a pool (PagedSequences of kdelta/ops/mla/mla.h). Page 0 belongs to
 * nobody. */
typedef struct kdelta_paged_sequences {
  const DLTensor* cu KDELTA_DEFAULT(nullptr);      /* [N+1] i32 */
  const DLTensor* context KDELTA_DEFAULT(nullptr); /* [N] i32, tokens before this call */
  const DLTensor* pages KDELTA_DEFAULT(nullptr);   /* [N, P] i32, -1 unused */
  int32_t n_prefill KDELTA_DEFAULT(0);
  int32_t n_decode KDELTA_DEFAULT(0);
  int64_t max_len KDELTA_DEFAULT(0);
  int64_t max_context KDELTA_DEFAULT(0); /* no context and length together are longer */
} kdelta_paged_sequences;

/* Stores latents in their pages; goes before kdelta_mla. */
typedef struct kdelta_mla_append_args {
  size_t struct_size KDELTA_DEFAULT(sizeof(kdelta_mla_append_args));
  const DLTensor* latent KDELTA_DEFAULT(nullptr); /* [T, L] f32|bf16 */
  const DLTensor* rope KDELTA_DEFAULT(nullptr);   /* [T, R] as latent */
  kdelta_paged_sequences seq KDELTA_DEFAULT({});
  const DLTensor* cache KDELTA_DEFAULT(nullptr); /* written: [page count, G, L+R] as latent, dense */
} kdelta_mla_append_args;
KDELTA_API kdelta_status kdelta_mla_append(kdelta_context* context, const kdelta_mla_append_args* args,
                                           const kdelta_launch* launch);
KDELTA_API kdelta_status kdelta_mla_append_workspace(kdelta_context* context, const kdelta_mla_append_args* args,
                                                     size_t* bytes);

/* Multi-head latent attention over paged latents (kdelta/ops/mla/mla.h). */
typedef struct kdelta_mla_args {
  size_t struct_size KDELTA_DEFAULT(sizeof(kdelta_mla_args));
  const DLTensor* q KDELTA_DEFAULT(nullptr);          /* [T, H, Nn+R] f32|bf16 */
  const DLTensor* cache KDELTA_DEFAULT(nullptr);      /* [page count, G, L+R] f32|bf16, dense */
  const DLTensor* kv_b KDELTA_DEFAULT(nullptr);       /* [H*(Nn+V), L] f32|bf16, or codes of an MX format */
  const DLTensor* kv_b_scale KDELTA_DEFAULT(nullptr); /* [H*(Nn+V), L/32] u8, of an MX format */
  int32_t kv_b_format KDELTA_DEFAULT(KDELTA_FORMAT_PLAIN);
  kdelta_paged_sequences seq KDELTA_DEFAULT({});
  int64_t nope KDELTA_DEFAULT(0);              /* Nn */
  int64_t rope KDELTA_DEFAULT(0);              /* R */
  int64_t value KDELTA_DEFAULT(0);             /* V */
  int64_t latent KDELTA_DEFAULT(0);            /* L */
  float scale KDELTA_DEFAULT(0);               /* usually (Nn+R)^-0.5 */
  const DLTensor* out KDELTA_DEFAULT(nullptr); /* written: [T, H, V] as q */
} kdelta_mla_args;
KDELTA_API kdelta_status kdelta_mla(kdelta_context* context, const kdelta_mla_args* args, const kdelta_launch* launch);
KDELTA_API kdelta_status kdelta_mla_workspace(kdelta_context* context, const kdelta_mla_args* args, size_t* bytes);

#ifdef __cplusplus
}
#endif

#endif
