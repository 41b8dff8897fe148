// Views of the caller's (DLTensor) as the ops take them. What has to do with memory is checked here, for every door:
// pointers, alignment, devices, strides, overlaps. Shapes and dtypes are the ops' to judge.
#pragma once

#include <array>

#include "kdelta/api/dlpack.h"
#include "kdelta/core/device.h"
#include "kdelta/core/matrix.h"

namespace kdelta::c {

// The arguments of one call. Every member throws Error(invalid_argument): "OP: ARGUMENT: what was given, expected ...".
class Arguments {
 public:
  // planning: pointers may be null and are not looked at.
  Arguments(const char* op, Device device, bool planning) : op_(op), device_(device), planning_(planning) {}

  AnyConstView in(const DLTensor* t, const char* name) { return view(t, name, false); }
  AnyView out(const DLTensor* t, const char* name) { return view(t, name, true); }
  // A null view for NULL.
  AnyConstView in_if(const DLTensor* t, const char* name) { return t == nullptr ? AnyConstView{} : in(t, name); }
  AnyView out_if(const DLTensor* t, const char* name) { return t == nullptr ? AnyView{} : out(t, name); }
  template <class T>
  View<const T> in(const DLTensor* t, const char* name) {
    return typed<T>(view(t, name, false), name);
  }
  template <class T>
  View<const T> in_if(const DLTensor* t, const char* name) {
    return t == nullptr ? View<const T>{} : in<T>(t, name);
  }
  template <class T>
  View<T> out(const DLTensor* t, const char* name) {
    return typed<T>(view(t, name, true), name);
  }
  template <class T>
  View<T> out_if(const DLTensor* t, const char* name) {
    return t == nullptr ? View<T>{} : out<T>(t, name);
  }
  // A weight: plain, or codes of an MX format with their scales.
  Matrix matrix(const DLTensor* t, const DLTensor* scale, int32_t format, const char* name, const char* scale_name);
  // 0 .. count-1 as the enum that it numbers.
  template <class E>
  E choice(int32_t value, int count, const char* name) const {
    if (value < 0 || value >= count) refuse_choice(value, count, name);
    return static_cast<E>(value);
  }
  // kdelta_format; plain is refused.
  DType mx_format(int32_t format, const char* name) const;

  // After the last argument: what is written overlaps nothing. With in_place an output may be an input itself.
  void expect_apart(bool in_place = false) const;

 private:
  AnyView view(const DLTensor* t, const char* name, bool written);
  template <class T>
  View<T> typed(const AnyView& v, const char* name) const {
    if (v.dtype != DTypeOf<T>::value) refuse_dtype(v.dtype, DTypeOf<T>::value, name);
    return View<T>(static_cast<T*>(v.data), v.shape, v.stride);
  }
  [[noreturn]] void refuse_dtype(DType dtype, DType accepted, const char* name) const;
  [[noreturn]] void refuse_choice(int32_t value, int count, const char* name) const;
  template <class... Parts>
  [[noreturn]] void refuse(const char* name, const Parts&... parts) const;

  struct Given {
    AnyConstView view;
    const char* name = nullptr;
    bool written = false;
  };
  static constexpr size_t kMost = 24;  // arguments of an op

  const char* op_;
  Device device_;
  bool planning_;
  std::array<Given, kMost> given_;
  size_t count_ = 0;
};

}  // namespace kdelta::c
