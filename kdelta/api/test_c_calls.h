// Calls of every operator of the C interface with all their memory: valid ones, of a few sizes, whose arguments a test
// or a fuzzer then spoils one by one.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kdelta/api/c.h"
#include "kdelta/core/dtype.h"

namespace kdelta::test {

inline constexpr DLDataType kF32{kDLFloat, 32, 1}, kBf16{kDLBfloat, 16, 1}, kI32{kDLInt, 32, 1}, kI64{kDLInt, 64, 1},
    kI8{kDLInt, 8, 1}, kU8{kDLUInt, 8, 1};

// A tensor argument: a description that may be changed, and memory that fits it.
class Argument {
 public:
  std::string name;
  const DLTensor** field = nullptr;  // where the call keeps its view
  bool optional = false, written = false;
  std::vector<int64_t> shape, strides;  // strides empty: dense
  DLTensor view{};

  // Bytes from the first element to behind the last, -1 when that is more than `most`.
  int64_t span(int64_t most) const {
    if (std::any_of(shape.begin(), shape.end(), [](int64_t d) { return d < 0; })) return -1;
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
    int64_t last = 0, below = 1;  // elements of the axes behind, counted as far as `most`, so that no product wraps
    for (size_t i = shape.size(); i-- > 0;) {
      const int64_t step = strides.empty() ? below : strides[i];
      if (step < 0 || step > most || shape[i] > most || (last += (shape[i] - 1) * step) > most) return -1;
      below = below > most / shape[i] ? most + 1 : below * shape[i];
    }
    return (last + 1) * std::max<int64_t>(view.dtype.bits / 8, 1);
  }
  // Memory for the description as it is now, between guards. False when it would be more than `most` bytes: then the
  // call must refuse it before it looks, and the pointer is null.
  bool allocate(int64_t most = int64_t{1} << 20) {
    view.shape = shape.data();
    view.strides = strides.empty() ? nullptr : strides.data();
    view.ndim = static_cast<int32_t>(shape.size());
    const int64_t bytes = span(most);
    memory_.assign(static_cast<size_t>(std::max<int64_t>(bytes, 0) + 2 * kGuard), kPoison);
    view.data = bytes < 0 || bytes > most ? nullptr : memory_.data() + kGuard;
    return view.data != nullptr;
  }
  template <class T>
  T* as() {
    return static_cast<T*>(view.data);
  }
  int64_t elements() const {
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;  // beside a zero any size may stand
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
  bool guards_intact() const {
    for (size_t i = 0; i < kGuard; ++i)
      if (memory_[i] != kPoison || memory_[memory_.size() - 1 - i] != kPoison) return false;
    return true;
  }
  const std::vector<unsigned char>& memory() const { return memory_; }

 private:
  static constexpr size_t kGuard = 128;
  static constexpr unsigned char kPoison = 0xA5;
  std::vector<unsigned char> memory_;
};

// One call: its struct, its tensors, the functions.
class Call {
 public:
  const char* op = nullptr;
  std::vector<std::unique_ptr<Argument>> arguments;
  std::vector<std::pair<const char*, std::function<void(int64_t)>>> numbers;  // fields that are no tensors
  std::function<kdelta_status(kdelta_context*, const kdelta_launch*)> run;
  std::function<kdelta_status(kdelta_context*, size_t*)> workspace;
  size_t* struct_size = nullptr;
  std::shared_ptr<void> args;

  Argument& at(const std::string& name) {
    for (auto& a : arguments)
      if (a->name == name) return *a;
    std::abort();
  }
  // With as much scratch as the operator asks for.
  kdelta_status execute(kdelta_context* context) {
    kdelta_launch launch;
    if (const kdelta_status s = workspace(context, &launch.workspace_bytes); s != KDELTA_OK) return s;
    constexpr size_t kMost = size_t{1} << 28;
    if (launch.workspace_bytes > kMost) return KDELTA_OUT_OF_MEMORY;
    scratch_.resize(launch.workspace_bytes);
    launch.workspace = scratch_.data();
    return run(context, &launch);
  }
  bool guards_intact() const {
    for (const auto& a : arguments)
      if (!a->guards_intact()) return false;
    return true;
  }

 private:
  std::vector<char> scratch_;
};

namespace calls {

enum Kind { kIn, kOut, kInIf, kOutIf };

// Fills with values of about 1, all different; codes of u8 with anything.
class Maker {
 public:
  explicit Maker(Call& call) : call_(call), rng_(7) {}
  Argument& add(const char* name, const DLTensor** field, Kind kind, DLDataType type, std::vector<int64_t> shape,
                std::vector<int64_t> strides = {}) {
    auto a = std::make_unique<Argument>();
    a->name = name;
    a->field = field;
    a->optional = kind == kInIf || kind == kOutIf;
    a->written = kind == kOut || kind == kOutIf;
    a->shape = std::move(shape);
    a->strides = std::move(strides);
    a->view.dtype = type;
    a->view.device = {kDLCPU, 0};
    a->allocate();
    fill(*a);
    *field = &a->view;
    call_.arguments.push_back(std::move(a));
    return *call_.arguments.back();
  }
  Argument& integers(const char* name, const DLTensor** field, const std::vector<int32_t>& values,
                     std::vector<int64_t> shape) {
    Argument& a = add(name, field, kIn, kI32, std::move(shape));
    std::memcpy(a.view.data, values.data(), values.size() * sizeof(int32_t));
    return a;
  }
  Argument& find(const char* name) { return call_.at(name); }

  void fill(Argument& a) {
    const int64_t bytes = a.span(int64_t{1} << 40);
    std::normal_distribution<float> normal(0, 0.7f);
    if (a.view.dtype.code == kDLFloat)
      for (int64_t i = 0; i < bytes / 4; ++i) a.as<float>()[i] = normal(rng_);
    else if (a.view.dtype.code == kDLBfloat)
      for (int64_t i = 0; i < bytes / 2; ++i) a.as<bf16>()[i] = to_bf16(normal(rng_));
    else
      for (int64_t i = 0; i < bytes; ++i) a.as<uint8_t>()[i] = static_cast<uint8_t>(rng_() % 100 + 60);
  }

 private:
  Call& call_;
  std::mt19937_64 rng_;
};

// Sequences of 65, 3 and 1 tokens in 71 rows; the second verifies two drafts, the first leaves a snapshot.
struct Layout {
  int32_t n_prefill = 1, n_decode = 2;
  int64_t T = 71, N = 3, columns = 3, slots = 12, max_len = 65;
};

inline void sequences(Maker& m, kdelta_sequences& s, const Layout& z) {
  m.integers("cu", &s.cu, {0, 65, 68, 69}, {z.N + 1});
  m.integers("slot", &s.slot, {1, 2, 3, 4, 5, 6, 7, 8, 9}, {z.N, z.columns});
  m.integers("accepted", &s.accepted, {1, 2, 3}, {z.N});
  Argument& fresh = m.add("fresh", &s.fresh, kIn, kU8, {z.N});
  std::memset(fresh.view.data, 0, 3);
  m.integers("snapshot", &s.snapshot, {0, 64, 10}, {1, 3}).optional = true;
  s.n_prefill = z.n_prefill;
  s.n_decode = z.n_decode;
  s.max_len = z.max_len;
}

// The same rows as latents in pages of 16 tokens: contexts of 0, 20 and 15 tokens.
inline void pages(Maker& m, kdelta_paged_sequences& s, const Layout& z) {
  m.integers("cu", &s.cu, {0, 65, 68, 69}, {z.N + 1});
  m.integers("context", &s.context, {0, 20, 15}, {z.N});
  m.integers("pages", &s.pages, {1, 2, 3, 4, 5, 6, 7, -1, -1, -1, 8, -1, -1, -1, -1}, {z.N, 5});
  s.n_prefill = z.n_prefill;
  s.n_decode = z.n_decode;
  s.max_len = z.max_len;
  s.max_context = 70;
}

template <class Args>
using Run = kdelta_status (*)(kdelta_context*, const Args*, const kdelta_launch*);
template <class Args>
using Workspace = kdelta_status (*)(kdelta_context*, const Args*, size_t*);

template <class Args>
std::shared_ptr<Args> connect(Call& c, const char* op, Run<Args> run, Workspace<Args> workspace) {
  struct Longer {  // so that a struct_size up to 255 is true of the memory
    Args args;
    unsigned char later[256] = {};
  };
  const auto longer = std::make_shared<Longer>();
  const std::shared_ptr<Args> a(longer, &longer->args);
  c.op = op;
  c.args = a;
  c.run = [a, run](kdelta_context* context, const kdelta_launch* launch) { return run(context, a.get(), launch); };
  c.workspace = [a, workspace](kdelta_context* context, size_t* bytes) { return workspace(context, a.get(), bytes); };
  c.struct_size = &a->struct_size;
  return a;
}

template <class T>
void number(Call& c, const char* name, T* field) {
  c.numbers.push_back({name, [field](int64_t v) { *field = static_cast<T>(v); }});
}

inline void sequence_numbers(Call& c, kdelta_sequences& s) {
  number(c, "n_prefill", &s.n_prefill);
  number(c, "n_decode", &s.n_decode);
}

// [T, H, D] as a column range of rows of `row` elements.
inline std::vector<int64_t> packed(int64_t row, int64_t D) {
  return {row, D, 1};
}

inline Call kda(bool records = false) {
  Call c;
  auto a = connect<kdelta_kda_args>(c, "kda", kdelta_kda, kdelta_kda_workspace);
  Maker m(c);
  const Layout z;
  const int64_t H = 2, K = 32, V = 48;
  m.add("q", &a->q, kIn, kBf16, {z.T, H, K}, packed(3 * H * K, K));
  m.add("k", &a->k, kIn, kBf16, {z.T, H, K});
  m.add("v", &a->v, kIn, kBf16, {z.T, H, V});
  m.add("gate", &a->gate, kIn, kF32, {z.T, H, K});
  m.add("beta", &a->beta, kIn, kBf16, {z.T, H});
  m.add("a_log", &a->a_log, kIn, kF32, {H});
  m.add("dt_bias", &a->dt_bias, kIn, kF32, {H, K});
  sequences(m, a->seq, z);
  m.add("state", &a->state, kOut, kF32, {z.slots, H, V, K});
  if (records) m.add("records", &a->records, kOutIf, kF32, {z.slots, z.columns - 1, H, 2 * K + V});
  m.add("out", &a->out, kOut, kBf16, {z.T, H, V});
  a->scale = 0.17f;
  number(c, "gate_kind", &a->gate_kind);
  number(c, "beta_kind", &a->beta_kind);
  number(c, "norm_kind", &a->norm_kind);
  number(c, "lower_bound", &a->lower_bound);
  sequence_numbers(c, a->seq);
  return c;
}

inline Call kda_replay() {
  Call c;
  auto a = connect<kdelta_kda_replay_args>(c, "kda_replay", kdelta_kda_replay, kdelta_kda_replay_workspace);
  Maker m(c);
  m.add("state", &a->state, kOut, kF32, {5, 2, 48, 32});
  m.add("records", &a->records, kIn, kF32, {5, 3, 2, 2 * 32 + 48}).written = true;  // not by replay, but as state is
  m.integers("slot", &a->slot, {1, -1, 4}, {3});
  m.integers("accepted", &a->accepted, {4, 1, 2}, {3});
  return c;
}

// Rows of slot 2, of fresh slot 1, of nobody; one token behind them.
inline Call kda_decode() {
  Call c;
  auto a = connect<kdelta_kda_decode_args>(c, "kda_decode", kdelta_kda_decode, kdelta_kda_decode_workspace);
  Maker m(c);
  const int64_t T = 4, H = 2, K = 32, V = 48, C = H * (2 * K + V);
  m.add("qkv", &a->qkv, kIn, kBf16, {T, C}, {C + 32, 1});
  m.add("conv_weight", &a->conv_weight, kIn, kF32, {4, C});
  m.add("decay", &a->decay, kIn, kF32, {T, H, K});
  m.add("beta", &a->beta, kIn, kBf16, {T, H});
  m.add("a_log", &a->a_log, kIn, kF32, {H});
  m.add("dt_bias", &a->dt_bias, kIn, kF32, {H, K});
  m.add("gate", &a->gate, kIn, kBf16, {T, H, V});
  m.add("norm_weight", &a->norm_weight, kIn, kF32, {V});
  m.integers("cu", &a->seq.cu, {0, 1, 2, 3}, {4});
  m.integers("slot", &a->seq.slot, {2, 1, -1}, {3, 1});
  m.integers("accepted", &a->seq.accepted, {1, 1, 1}, {3});
  Argument& fresh = m.add("fresh", &a->seq.fresh, kIn, kU8, {3});
  for (int n = 0; n < 3; ++n) fresh.as<uint8_t>()[n] = n == 1;
  m.add("state", &a->state, kOut, kF32, {4, H, V, K});
  m.add("window", &a->window, kOut, kBf16, {4, 3, C});
  m.add("out", &a->out, kOut, kBf16, {T, H, V});
  a->seq.n_decode = 3;
  a->seq.max_len = 1;
  a->scale = 0.17f;
  a->norm_eps = 1e-5f;
  number(c, "gate_kind", &a->gate_kind);
  number(c, "beta_kind", &a->beta_kind);
  number(c, "norm_kind", &a->norm_kind);
  number(c, "lower_bound", &a->lower_bound);
  sequence_numbers(c, a->seq);
  return c;
}

inline Call short_conv(bool split = false) {
  Call c;
  auto a = connect<kdelta_short_conv_args>(c, "short_conv", kdelta_short_conv, kdelta_short_conv_workspace);
  Maker m(c);
  const Layout z;
  const int64_t C = 96;
  m.add("x", &a->x, kIn, kBf16, {z.T, C}, {C + 32, 1});
  m.add("weight", &a->weight, kIn, kF32, {4, C});
  sequences(m, a->seq, z);
  m.add("state", &a->state, kOut, kBf16, {z.slots, 5, C});
  if (split) {
    const char* names[] = {"split[0]", "split[1]", "split[2]"};
    for (size_t i = 0; i < 3; ++i) m.add(names[i], &a->split[i], kOutIf, kBf16, {z.T, C / 3});
  } else {
    m.add("out", &a->out, kOutIf, kBf16, {z.T, C});
  }
  sequence_numbers(c, a->seq);
  return c;
}

inline Call gated_norm() {
  Call c;
  auto a = connect<kdelta_gated_norm_args>(c, "gated_norm", kdelta_gated_norm, kdelta_gated_norm_workspace);
  Maker m(c);
  const std::vector<int64_t> shape = {5, 2, 32};
  m.add("x", &a->x, kIn, kBf16, shape);
  m.add("gate", &a->gate, kIn, kF32, shape, packed(130, 64));
  m.add("weight", &a->weight, kInIf, kF32, {32});
  m.add("bias", &a->bias, kInIf, kF32, {32});
  m.add("residual", &a->residual, kInIf, kF32, shape);
  m.add("sum_out", &a->sum_out, kOutIf, kF32, shape);
  m.integers("live", &a->live, {4}, {1}).optional = true;
  m.add("out", &a->out, kOut, kBf16, shape);
  a->eps = 1e-5f;
  number(c, "eps", &a->eps);
  return c;
}

inline Call attn_res() {
  Call c;
  auto a = connect<kdelta_attn_res_args>(c, "attn_res", kdelta_attn_res, kdelta_attn_res_workspace);
  Maker m(c);
  m.add("blocks", &a->blocks, kIn, kBf16, {4, 6, 64});
  m.add("sum", &a->sum, kIn, kBf16, {6, 64});
  m.add("addend", &a->addend, kInIf, kBf16, {6, 64});
  m.add("sum_out", &a->sum_out, kOutIf, kBf16, {6, 64});
  m.add("score_weight", &a->score_weight, kIn, kF32, {64});
  m.add("norm_weight", &a->norm_weight, kInIf, kF32, {64});
  m.add("out", &a->out, kOut, kBf16, {6, 64});
  a->n = 3;
  a->eps = a->norm_eps = 1e-5f;
  number(c, "n", &a->n);
  return c;
}

inline Call activation() {
  Call c;
  auto a = connect<kdelta_activation_args>(c, "activation", kdelta_activation, kdelta_activation_workspace);
  Maker m(c);
  m.add("gate", &a->gate, kIn, kBf16, {6, 70}, {140, 1});
  m.add("up", &a->up, kIn, kF32, {6, 70});
  m.add("out", &a->out, kOut, kBf16, {6, 70});
  number(c, "kind", &a->kind);
  number(c, "beta", &a->beta);
  number(c, "linear_beta", &a->linear_beta);
  return c;
}

inline Call mx_quantize(bool situ = false) {
  Call c;
  auto a = connect<kdelta_mx_quantize_args>(c, "mx_quantize", kdelta_mx_quantize, kdelta_mx_quantize_workspace);
  Maker m(c);
  m.add("x", &a->x, kIn, kBf16, {5, situ ? 192 : 96});
  m.add("codes", &a->codes, kOut, kU8, {5, situ ? 96 : 48});
  m.add("scale", &a->scale, kOut, kU8, {5, 3});
  Argument& counts = m.add("group_counts", &a->group_counts, kInIf, kI64, {2});
  counts.as<int64_t>()[0] = 3;
  counts.as<int64_t>()[1] = 1;
  a->situ = situ ? 1 : 0;
  a->format = situ ? KDELTA_FORMAT_F8_E5M2 : KDELTA_FORMAT_F4_E2M1;
  number(c, "format", &a->format);
  number(c, "rule", &a->rule);
  if (situ) number(c, "beta", &a->beta);
  return c;
}

inline Call mx_dequantize() {
  Call c;
  auto a = connect<kdelta_mx_dequantize_args>(c, "mx_dequantize", kdelta_mx_dequantize, kdelta_mx_dequantize_workspace);
  Maker m(c);
  m.add("codes", &a->codes, kIn, kU8, {5, 96});
  m.add("scale", &a->scale, kIn, kU8, {5, 3});
  m.add("out", &a->out, kOut, kBf16, {5, 96});
  number(c, "format", &a->format);
  return c;
}

inline Call dequant_situ() {
  Call c;
  auto a = connect<kdelta_dequant_situ_args>(c, "dequant_situ", kdelta_dequant_situ, kdelta_dequant_situ_workspace);
  Maker m(c);
  m.add("x", &a->x, kIn, kI32, {5, 64});
  for (int64_t i = 0; i < 5 * 64; ++i) m.find("x").as<int32_t>()[i] = static_cast<int32_t>(i * 37 % 201 - 100);
  m.add("weight_scale", &a->weight_scale, kInIf, kF32, {2, 64});
  m.add("activation_scale", &a->activation_scale, kInIf, kF32, {5});
  m.add("bias", &a->bias, kInIf, kF32, {2, 64});
  Argument& counts = m.add("group_counts", &a->group_counts, kInIf, kI64, {2});
  counts.as<int64_t>()[0] = 3;
  counts.as<int64_t>()[1] = 2;
  m.add("y", &a->y, kOut, kI8, {5, 32});
  m.add("scale", &a->scale, kOutIf, kF32, {5});
  number(c, "beta", &a->beta);
  return c;
}

inline Call mla_append() {
  Call c;
  auto a = connect<kdelta_mla_append_args>(c, "mla_append", kdelta_mla_append, kdelta_mla_append_workspace);
  Maker m(c);
  const Layout z;
  m.add("latent", &a->latent, kIn, kBf16, {z.T, 32}, {48, 1});
  m.add("rope", &a->rope, kIn, kBf16, {z.T, 16});
  pages(m, a->seq, z);
  m.add("cache", &a->cache, kOut, kBf16, {9, 16, 48});
  number(c, "n_prefill", &a->seq.n_prefill);
  number(c, "max_len", &a->seq.max_len);
  number(c, "max_context", &a->seq.max_context);
  return c;
}

inline Call mla(bool mx = false) {
  Call c;
  auto a = connect<kdelta_mla_args>(c, "mla", kdelta_mla, kdelta_mla_workspace);
  Maker m(c);
  const Layout z;
  const int64_t H = 2;
  a->nope = 32, a->rope = 16, a->value = 24, a->latent = 32;
  const int64_t rows = H * (a->nope + a->value);
  m.add("q", &a->q, kIn, kBf16, {z.T, H, a->nope + a->rope});
  m.add("cache", &a->cache, kIn, kBf16, {9, 16, a->latent + a->rope});
  if (mx) {
    m.add("kv_b", &a->kv_b, kIn, kU8, {rows, a->latent / 2});
    m.add("kv_b_scale", &a->kv_b_scale, kIn, kU8, {rows, 1});
    a->kv_b_format = KDELTA_FORMAT_F4_E2M1;
  } else {
    m.add("kv_b", &a->kv_b, kIn, kBf16, {rows, a->latent}, {40, 1});
  }
  pages(m, a->seq, z);
  m.add("out", &a->out, kOut, kBf16, {z.T, H, a->value});
  a->scale = 0.2f;
  number(c, "kv_b_format", &a->kv_b_format);
  number(c, "n_decode", &a->seq.n_decode);
  number(c, "max_len", &a->seq.max_len);
  number(c, "max_context", &a->seq.max_context);
  number(c, "nope", &a->nope);
  number(c, "latent", &a->latent);
  return c;
}

}  // namespace calls

// Every operator, each form of its arguments.
inline constexpr Call (*kCalls[])() = {[] { return calls::kda(); },
                                       [] { return calls::kda(true); },
                                       [] { return calls::kda_replay(); },
                                       [] { return calls::kda_decode(); },
                                       [] { return calls::short_conv(); },
                                       [] { return calls::short_conv(true); },
                                       [] { return calls::gated_norm(); },
                                       [] { return calls::attn_res(); },
                                       [] { return calls::activation(); },
                                       [] { return calls::mx_quantize(); },
                                       [] { return calls::mx_quantize(true); },
                                       [] { return calls::mx_dequantize(); },
                                       [] { return calls::dequant_situ(); },
                                       [] { return calls::mla_append(); },
                                       [] { return calls::mla(); },
                                       [] { return calls::mla(true); }};

}  // namespace kdelta::test
