// What torch_ops.cc takes of PyTorch's stable C interface (2.10 and later), declared by hand: so every build has the
// kernels, and none needs PyTorch or its headers. Where those are at hand, both together must compile
// (tests/python/torch/test_interface.py).
#pragma once

#include <cstddef>
#include <cstdint>

struct AtenTensorOpaque;
struct TorchLibraryOpaque;
struct StringOpaque;
using AtenTensorHandle = AtenTensorOpaque*;
using TorchLibraryHandle = TorchLibraryOpaque*;
using StringHandle = StringOpaque*;
using AOTITorchError = int32_t;  // 0: done
using StableIValue = uint64_t;   // a value, or a handle that its receiver owns

extern "C" {

// Tensors. What is returned by pointer is theirs but for new handles.
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor);
AOTITorchError aoti_torch_new_tensor_handle(AtenTensorHandle tensor, AtenTensorHandle* made);
AOTITorchError aoti_torch_get_data_ptr(AtenTensorHandle tensor, void** data);
AOTITorchError aoti_torch_get_dim(AtenTensorHandle tensor, int64_t* rank);
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t** sizes);
AOTITorchError aoti_torch_get_strides(AtenTensorHandle tensor, int64_t** strides);
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t* dtype);
AOTITorchError aoti_torch_get_device_type(AtenTensorHandle tensor, int32_t* type);
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t* index);
AOTITorchError aoti_torch_empty_strided(int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                        int32_t device_type, int32_t device_index, AtenTensorHandle* made);

int32_t aoti_torch_device_type_cpu();
int32_t aoti_torch_device_type_cuda();
int32_t aoti_torch_dtype_float8_e5m2();
int32_t aoti_torch_dtype_float8_e4m3fn();
int32_t aoti_torch_dtype_bfloat16();
int32_t aoti_torch_dtype_float16();
int32_t aoti_torch_dtype_float32();
int32_t aoti_torch_dtype_float64();
int32_t aoti_torch_dtype_uint8();
int32_t aoti_torch_dtype_int8();
int32_t aoti_torch_dtype_int16();
int32_t aoti_torch_dtype_int32();
int32_t aoti_torch_dtype_int64();
int32_t aoti_torch_dtype_bool();

AOTITorchError torch_get_num_threads(uint32_t* threads);
AOTITorchError torch_string_length(StringHandle text, size_t* length);
AOTITorchError torch_string_c_str(StringHandle text, const char** data);
AOTITorchError torch_delete_string(StringHandle text);

// Kernels of a dispatch key; `version` is that of the interface they were written for.
AOTITorchError aoti_torch_library_init_impl(const char* name, const char* key, const char* file, uint32_t line,
                                            TorchLibraryHandle* made);
AOTITorchError aoti_torch_delete_library_object(TorchLibraryHandle library);
AOTITorchError torch_library_impl(TorchLibraryHandle library, const char* name,
                                  void (*kernel)(StableIValue*, uint64_t, uint64_t), uint64_t version);

// Not of every PyTorch, and so looked up: from 2.11 on; of libtorch_cuda.so.
int32_t torch_dtype_float8_e8m0fnu();
AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);
}
