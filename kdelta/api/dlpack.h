/* The tensor view of DLPack (https://dmlc.github.io/dlpack), declared by hand so that nobody needs its package: the
 * same names and layout as dlpack.h from version 0.2 on. Whoever uses both includes dlpack.h first. C99 and C++. */
#ifndef KDELTA_API_DLPACK_H_
#define KDELTA_API_DLPACK_H_

#include <stdint.h>

#ifndef DLPACK_DLPACK_H_

typedef enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13 } DLDeviceType;

typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;

typedef enum {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLBfloat = 4,
  kDLBool = 6,
  kDLFloat8_e4m3fn = 10,
  kDLFloat8_e5m2 = 12,
  kDLFloat8_e8m0fnu = 14
} DLDataTypeCode;

typedef struct {
  uint8_t code; /* DLDataTypeCode */
  uint8_t bits;
  uint16_t lanes; /* 1 */
} DLDataType;

typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;   /* [ndim] */
  int64_t* strides; /* [ndim] in elements; NULL: dense, the last axis innermost */
  uint64_t byte_offset;
} DLTensor;

#endif /* DLPACK_DLPACK_H_ */

#endif
