/* What every part of the C interface shares: status, messages, where operators run. C99 and C++.
 *
 * Nothing is thrown across: a function that can fail returns a kdelta_status, and kdelta_last_error() says in words
 * which argument was wrong, what was given and what is accepted. Structs begin with struct_size, which the caller sets
 * to sizeof: later versions may add fields behind, where 0 means what it meant before they existed. Values of enums
 * never change. */
#ifndef KDELTA_API_C_BASE_H_
#define KDELTA_API_C_BASE_H_

#include <stddef.h>
#include <stdint.h>

#include "kdelta/api/dlpack.h"
#include "kdelta/api/export.h"

/* A C++ caller may leave out what has a usual value; C99 writes {.struct_size = sizeof(...), ...} and names the rest.
 */
#ifdef __cplusplus
#define KDELTA_DEFAULT(value) = value
extern "C" {
#else
#define KDELTA_DEFAULT(value)
#endif

#define KDELTA_ABI_VERSION 0

typedef enum kdelta_status {
  KDELTA_OK = 0,
  KDELTA_INVALID_ARGUMENT = 1, /* a value, shape, dtype, stride, device or pointer that is not accepted */
  KDELTA_BAD_FILE = 2,         /* a checkpoint, tokenizer or state is malformed */
  KDELTA_UNSUPPORTED = 3,      /* well-formed, but nothing that this build or machine can do */
  KDELTA_OUT_OF_MEMORY = 4,
  KDELTA_FAILED = 5,  /* a computation gave nothing of use, or a device broke */
  KDELTA_INTERNAL = 6 /* a fault of the library's own */
} kdelta_status;

/* "invalid_argument"; "unknown" for a number that is none of them. */
KDELTA_API const char* kdelta_status_name(int32_t status);
/* Of the thread's last call that failed: "kda: v: shape [3, 2, 64], expected [4, 2, 64]". Never null, always
 * UTF-8 (other bytes of yours are written as \xNN); stays until the thread's next failure. */
KDELTA_API const char* kdelta_last_error(void);
/* "0.1.0 (commit abc, GNU 12.2.0)". */
KDELTA_API const char* kdelta_version(void);
/* KDELTA_ABI_VERSION of the library that runs: other numbers do not work together. */
KDELTA_API uint32_t kdelta_abi_version(void);

/* Where operators run, and their threads. For several threads at once, which wait for one another; not for the child of
 * a fork, which is refused. */
typedef struct kdelta_context kdelta_context;

typedef struct kdelta_context_options {
  size_t struct_size KDELTA_DEFAULT(sizeof(kdelta_context_options));
  int32_t device_type KDELTA_DEFAULT(kDLCPU); /* kDLCPU, kDLCUDA */
  int32_t device_id KDELTA_DEFAULT(0);
  int32_t threads KDELTA_DEFAULT(0);       /* CPU: 1 to 1024, the caller's own among them; 0: every available one */
  int32_t exact KDELTA_DEFAULT(0);         /* 1, CUDA: no bit of a row depends on the rows beside it; the CPU always */
  const char* isa KDELTA_DEFAULT(nullptr); /* the most to use: "portable", "avx2", ...; NULL: the machine's best */
  const char* force KDELTA_DEFAULT(nullptr); /* "op:variant,op:variant"; NULL: the best that fits */
} kdelta_context_options;

/* options NULL: the CPU, every thread. Touches a GPU only when asked for one. */
KDELTA_API kdelta_status kdelta_context_create(const kdelta_context_options* options, kdelta_context** out);
KDELTA_API void kdelta_context_destroy(kdelta_context* context); /* NULL is fine */

/* How one operator is started. It only enqueues on a CUDA device, allocates nothing there and waits for nothing, so
 * that it can be captured in a graph; on the CPU it is done when it returns. */
typedef struct kdelta_launch {
  size_t struct_size KDELTA_DEFAULT(sizeof(kdelta_launch));
  void* stream KDELTA_DEFAULT(nullptr); /* CUDA: a cudaStream_t of the context's device; CPU: NULL */
  /* Scratch on the context's device, as much as the operator's _workspace function says, at any address; it may be
   * used again as soon as the work is done. */
  void* workspace KDELTA_DEFAULT(nullptr);
  size_t workspace_bytes KDELTA_DEFAULT(0);
  uint32_t* faults KDELTA_DEFAULT(nullptr); /* CUDA: a word of the device that takes a bit for each kind of row that was
                                               skipped as wrong; NULL: nobody wants to know */
} kdelta_launch;

#ifdef __cplusplus
}
#endif

#endif
