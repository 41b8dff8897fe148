// The operators for C++: throwing forms of kdelta/api/c_ops.h, whose structs they take. Includes nothing but the
// standard library, and everything here is inline: only C symbols cross the library's edge, so compiler and standard
// library of a program need not be kdelta's.
//
//   kdelta::ops::Context context;
//   kdelta::ops::Tensor q(q_data, {T, H, K}), ...;
//   kdelta::ops::kda(context, {.q = q, .k = k, .v = v, ..., .state = state, .out = out});
#pragma once

#if __cplusplus < 202002L
#error "kdelta/api/ops.h needs C++20"
#endif

#include <algorithm>
#include <array>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "kdelta/api/c_ops.h"

namespace kdelta::ops {

class Error : public std::runtime_error {
 public:
  Error(kdelta_status status, const char* message) : std::runtime_error(message), status_(status) {}
  kdelta_status status() const { return status_; }

 private:
  kdelta_status status_;
};

inline void check(kdelta_status status) {
  if (status != KDELTA_OK) throw Error(status, kdelta_last_error());
}

enum class Type { f32, bf16, f16, i8, u8, i32, i64 };

// A view of memory that the caller owns: pointer, sizes, strides in elements, device.
class Tensor {
 public:
  static constexpr size_t kMostAxes = 5;

  // float, int8_t, uint8_t, int32_t, int64_t; const or not.
  template <class T>
  Tensor(T* data, std::initializer_list<int64_t> shape, std::initializer_list<int64_t> strides = {},
         DLDevice device = {kDLCPU, 0})
      : Tensor(const_cast<void*>(static_cast<const void*>(data)), type_of<std::remove_const_t<T>>(), shape, strides,
               device) {}
  Tensor(void* data, Type type, std::initializer_list<int64_t> shape, std::initializer_list<int64_t> strides = {},
         DLDevice device = {kDLCPU, 0}) {
    if (shape.size() > kMostAxes || (strides.size() != 0 && strides.size() != shape.size()))
      throw Error(KDELTA_INVALID_ARGUMENT, "Tensor: expected at most 5 axes, and as many strides as sizes or none");
    view_.data = data;
    view_.device = device;
    view_.ndim = static_cast<int32_t>(shape.size());
    view_.dtype = code_of(type);
    view_.byte_offset = 0;
    std::copy(shape.begin(), shape.end(), shape_.begin());
    std::copy(strides.begin(), strides.end(), strides_.begin());
    dense_ = strides.size() == 0;
    point();
  }
  Tensor(const Tensor& other) { *this = other; }
  Tensor& operator=(const Tensor& other) {
    view_ = other.view_;
    shape_ = other.shape_;
    strides_ = other.strides_;
    dense_ = other.dense_;
    point();
    return *this;
  }

  // For the fields of an operator's struct. The view must live as long as the struct, so a temporary has none.
  operator const DLTensor*() const& { return &view_; }
  operator const DLTensor*() const&& = delete;

 private:
  template <class T>
  static constexpr Type type_of() {
    if constexpr (std::is_same_v<T, float>) return Type::f32;
    if constexpr (std::is_same_v<T, int8_t>) return Type::i8;
    if constexpr (std::is_same_v<T, uint8_t>) return Type::u8;
    if constexpr (std::is_same_v<T, int32_t>) return Type::i32;
    if constexpr (std::is_same_v<T, int64_t>) return Type::i64;
  }
  static DLDataType code_of(Type type) {
    switch (type) {
      case Type::f32:
        return {kDLFloat, 32, 1};
      case Type::bf16:
        return {kDLBfloat, 16, 1};
      case Type::f16:
        return {kDLFloat, 16, 1};
      case Type::i8:
        return {kDLInt, 8, 1};
      case Type::u8:
        return {kDLUInt, 8, 1};
      case Type::i32:
        return {kDLInt, 32, 1};
      case Type::i64:
        return {kDLInt, 64, 1};
    }
    throw Error(KDELTA_INVALID_ARGUMENT, "Tensor: a type that is none");
  }
  void point() {
    view_.shape = shape_.data();
    view_.strides = dense_ ? nullptr : strides_.data();
  }

  DLTensor view_{};
  std::array<int64_t, kMostAxes> shape_{}, strides_{};
  bool dense_ = true;
};

// Where operators run. On the CPU it lends them scratch of its own, which grows to the largest that was asked for; a
// kdelta_launch with a workspace, or the C functions, do without.
class Context {
 public:
  explicit Context(const kdelta_context_options& options = {}) {
    kdelta_context* made = nullptr;
    check(kdelta_context_create(&options, &made));
    context_.reset(made);
  }
  kdelta_context* get() const { return context_.get(); }

  // Scratch of the CPU, of at least so many bytes.
  void* scratch(size_t bytes) {
    if (bytes > bytes_) {
      scratch_.reset();
      bytes_ = 0;
      scratch_.reset(std::malloc(bytes));
      if (scratch_ == nullptr) throw Error(KDELTA_OUT_OF_MEMORY, "Context: no memory for scratch");
      bytes_ = bytes;
    }
    return scratch_.get();
  }

 private:
  struct Destroy {
    void operator()(kdelta_context* c) const { kdelta_context_destroy(c); }
  };
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<kdelta_context, Destroy> context_;
  std::unique_ptr<void, Free> scratch_;
  size_t bytes_ = 0;
};

// With the context's own scratch; for one thread at a time. On a CUDA device give a launch.
#define KDELTA_OPS_OPERATOR(op)                                                                         \
  inline size_t op##_workspace(const Context& context, const kdelta_##op##_args& args) {                \
    size_t bytes = 0;                                                                                   \
    check(kdelta_##op##_workspace(context.get(), &args, &bytes));                                       \
    return bytes;                                                                                       \
  }                                                                                                     \
  inline void op(const Context& context, const kdelta_##op##_args& args, const kdelta_launch& launch) { \
    check(kdelta_##op(context.get(), &args, &launch));                                                  \
  }                                                                                                     \
  inline void op(Context& context, const kdelta_##op##_args& args) {                                    \
    const size_t bytes = op##_workspace(context, args);                                                 \
    op(context, args, {.workspace = context.scratch(bytes), .workspace_bytes = bytes});                 \
  }

KDELTA_OPS_OPERATOR(kda)
KDELTA_OPS_OPERATOR(kda_replay)
KDELTA_OPS_OPERATOR(kda_decode)
KDELTA_OPS_OPERATOR(short_conv)
KDELTA_OPS_OPERATOR(gated_norm)
KDELTA_OPS_OPERATOR(attn_res)
KDELTA_OPS_OPERATOR(activation)
KDELTA_OPS_OPERATOR(mx_quantize)
KDELTA_OPS_OPERATOR(mx_dequantize)
KDELTA_OPS_OPERATOR(dequant_situ)
KDELTA_OPS_OPERATOR(mla_append)
KDELTA_OPS_OPERATOR(mla)
#undef KDELTA_OPS_OPERATOR

}  // namespace kdelta::ops
