/* kdelta_gpu_c_program: what a C99 program does with operators on a CUDA device. Its own queue, its own memory, the
 * scratch that is asked for, the work recorded once and replayed; values against the CPU's; then what a call costs
 * beside its work. Exits with 3 and the reason where there is no device. */
#define _POSIX_C_SOURCE 200809L
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kdelta/api/c.h"

enum { ROWS = 64, COLUMNS = 256, ELEMENTS = ROWS * COLUMNS, CALLS = 200000 };

static void expect(int right, const char* what) {
  if (right) return;
  fprintf(stderr, "%s: %s; %s\n", what, kdelta_last_error(), cudaGetErrorString(cudaGetLastError()));
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static kdelta_context* make(int32_t type) {
  kdelta_context_options options = {.struct_size = sizeof(options), .device_type = type};
  kdelta_context* context = NULL;
  if (kdelta_context_create(&options, &context) == KDELTA_OK) return context;
  printf("%s\n", kdelta_last_error());
  exit(3);
}

static void values(kdelta_context* there, cudaStream_t stream) {
  static float gate[ELEMENTS], up[ELEMENTS], want[ELEMENTS], got[ELEMENTS];
  int64_t shape[2] = {ROWS, COLUMNS};
  const DLDevice cpu = {kDLCPU, 0}, cuda = {kDLCUDA, 0};
  const DLDataType f32 = {kDLFloat, 32, 1};
  DLTensor g = {gate, cpu, 2, f32, shape, NULL, 0}, u = {up, cpu, 2, f32, shape, NULL, 0},
           o = {want, cpu, 2, f32, shape, NULL, 0};
  kdelta_activation_args args = {
      .struct_size = sizeof(args), .kind = KDELTA_SITU, .beta = 4, .linear_beta = 25, .gate = &g, .up = &u, .out = &o};
  kdelta_launch launch = {.struct_size = sizeof(launch)};
  kdelta_context* here = make(kDLCPU);
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  float* memory = NULL;
  int i;
  for (i = 0; i < ELEMENTS; ++i) gate[i] = (float)(i % 101) * 0.1f - 5, up[i] = (float)(i % 37) * 0.2f - 3;
  expect(kdelta_activation(here, &args, &launch) == KDELTA_OK, "on the CPU");

  expect(kdelta_activation(there, &args, &launch) == KDELTA_INVALID_ARGUMENT, "host memory");
  printf("refused: %s\n", kdelta_last_error());

  expect(cudaMalloc((void**)&memory, 3 * sizeof(gate)) == cudaSuccess, "memory");
  g.data = memory, u.data = memory + ELEMENTS, o.data = memory + 2 * ELEMENTS;
  g.device = u.device = o.device = cuda;
  launch.stream = stream;
  expect(kdelta_activation_workspace(there, &args, &launch.workspace_bytes) == KDELTA_OK, "scratch");
  if (launch.workspace_bytes > 0)
    expect(cudaMalloc(&launch.workspace, launch.workspace_bytes) == cudaSuccess, "scratch");
  /* Recorded before its inputs are there; anything in another queue would end the recording as an error. */
  expect(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess, "recording");
  expect(kdelta_activation(there, &args, &launch) == KDELTA_OK, "on the device");
  expect(cudaStreamEndCapture(stream, &graph) == cudaSuccess, "the end of the recording");
  expect(cudaGraphInstantiate(&replay, graph, 0) == cudaSuccess, "the graph");
  cudaMemcpyAsync(g.data, gate, sizeof(gate), cudaMemcpyHostToDevice, stream);
  cudaMemcpyAsync(u.data, up, sizeof(up), cudaMemcpyHostToDevice, stream);
  cudaMemsetAsync(o.data, 0xff, sizeof(got), stream);
  expect(cudaGraphLaunch(replay, stream) == cudaSuccess, "a replay");
  cudaMemcpyAsync(got, o.data, sizeof(got), cudaMemcpyDeviceToHost, stream);
  expect(cudaStreamSynchronize(stream) == cudaSuccess, "the work");
  for (i = 0; i < ELEMENTS; ++i) expect(fabsf(got[i] - want[i]) <= 1e-5f * (1 + fabsf(want[i])), "a value");
  printf("a recorded activation says what the CPU says\n");
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaFree(launch.workspace);
  cudaFree(memory);
  kdelta_context_destroy(here);
}

/* No rows at all, as bench/doors.c has them on the CPU. */
static void overhead(kdelta_context* there, cudaStream_t stream) {
  void* memory = NULL;
  int64_t none[2] = {0, 32}, none3[3] = {0, 2, 16}, heads[1] = {2}, per_head[2] = {2, 16}, pool[4] = {2, 2, 16, 16},
          one[1] = {1}, zero[1] = {0}, slots[2] = {0, 1}, beta[2] = {0, 2};
  const DLDevice cuda = {kDLCUDA, 0};
  const DLDataType f32 = {kDLFloat, 32, 1}, i32 = {kDLInt, 32, 1}, u8 = {kDLUInt, 8, 1};
  expect(cudaMalloc(&memory, 1 << 16) == cudaSuccess, "memory");
  expect(cudaMemset(memory, 0, 1 << 16) == cudaSuccess, "zeros");
  {
    char* at = memory;
    DLTensor gate = {at, cuda, 2, f32, none, NULL, 0}, out = gate, q = {at, cuda, 3, f32, none3, NULL, 0};
    DLTensor b = {at, cuda, 2, f32, beta, NULL, 0}, a_log = {at, cuda, 1, f32, heads, NULL, 0};
    DLTensor dt_bias = {at + 256, cuda, 2, f32, per_head, NULL, 0}, cu = {at + 1024, cuda, 1, i32, one, NULL, 0};
    DLTensor slot = {at, cuda, 2, i32, slots, NULL, 0}, accepted = {at, cuda, 1, i32, zero, NULL, 0};
    DLTensor fresh = {at, cuda, 1, u8, zero, NULL, 0}, state = {at + 4096, cuda, 4, f32, pool, NULL, 0};
    kdelta_activation_args activation = {
        .struct_size = sizeof(activation), .kind = KDELTA_SWIGLU, .gate = &gate, .up = &gate, .out = &out};
    kdelta_kda_args kda = {.struct_size = sizeof(kda),
                           .q = &q,
                           .k = &q,
                           .v = &q,
                           .gate = &q,
                           .beta = &b,
                           .a_log = &a_log,
                           .dt_bias = &dt_bias,
                           .gate_kind = KDELTA_GATE_BOUNDED,
                           .lower_bound = -5,
                           .scale = 1,
                           .seq = {.cu = &cu, .slot = &slot, .accepted = &accepted, .fresh = &fresh},
                           .state = &state,
                           .out = &q};
    kdelta_launch launch = {.struct_size = sizeof(launch), .stream = stream};
    int r, i;
    expect(kdelta_kda_workspace(there, &kda, &launch.workspace_bytes) == KDELTA_OK, "scratch");
    if (launch.workspace_bytes > 0)
      expect(cudaMalloc(&launch.workspace, launch.workspace_bytes) == cudaSuccess, "scratch");
    for (r = 0; r < 5; ++r) {
      double begin = now(), middle;
      for (i = 0; i < CALLS; ++i) expect(kdelta_activation(there, &activation, &launch) == KDELTA_OK, "activation");
      middle = now();
      for (i = 0; i < CALLS; ++i) expect(kdelta_kda(there, &kda, &launch) == KDELTA_OK, "kda");
      printf("ns a call on no rows: activation %.0f, kda %.0f\n", (middle - begin) / CALLS, (now() - middle) / CALLS);
    }
    expect(cudaStreamSynchronize(stream) == cudaSuccess, "the work");
    cudaFree(launch.workspace);
  }
  cudaFree(memory);
}

int main(int argc, char** argv) {
  kdelta_context* there = make(kDLCUDA);
  cudaStream_t stream;
  expect(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "a queue");
  values(there, stream);
  if (argc > 1 && strcmp(argv[1], "--time") == 0) overhead(there, stream);
  cudaStreamDestroy(stream);
  kdelta_context_destroy(there);
  return 0;
}
