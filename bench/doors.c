/* What a call through the C interface costs beside its work: calls on no rows at all. Prints a line for each operator
 * and repetition: its name and nanoseconds. bench/doors.py compiles and runs it. */
#include <kdelta/api/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CALLS = 200000, REPETITIONS = 7 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void fail(void) {
  fprintf(stderr, "%s\n", kdelta_last_error());
  exit(1);
}

int main(void) {
  float rows[64], state[2 * 2 * 16 * 16], parameters[64];
  int32_t numbers[4] = {0, 0, 0, 0};
  unsigned char fresh[4] = {0, 0, 0, 0};
  int64_t none[2] = {0, 32}, none3[3] = {0, 2, 16}, heads[1] = {2}, per_head[2] = {2, 16}, pool[4] = {2, 2, 16, 16},
          one[1] = {1}, zero[1] = {0}, slots[2] = {0, 1}, beta[2] = {0, 2};
  const DLDevice cpu = {kDLCPU, 0};
  const DLDataType f32 = {kDLFloat, 32, 1}, i32 = {kDLInt, 32, 1}, u8 = {kDLUInt, 8, 1};
  DLTensor gate = {rows, cpu, 2, f32, none, NULL, 0}, out = gate;
  DLTensor q = {rows, cpu, 3, f32, none3, NULL, 0}, b = {rows, cpu, 2, f32, beta, NULL, 0};
  DLTensor a_log = {parameters, cpu, 1, f32, heads, NULL, 0}, dt_bias = {parameters, cpu, 2, f32, per_head, NULL, 0};
  DLTensor cu = {numbers, cpu, 1, i32, one, NULL, 0}, slot = {numbers, cpu, 2, i32, slots, NULL, 0};
  DLTensor accepted = {numbers, cpu, 1, i32, zero, NULL, 0}, fr = {fresh, cpu, 1, u8, zero, NULL, 0};
  DLTensor s = {state, cpu, 4, f32, pool, NULL, 0};
  kdelta_context_options options = {.struct_size = sizeof(options), .device_type = kDLCPU, .threads = 1};
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
                         .seq = {.cu = &cu, .slot = &slot, .accepted = &accepted, .fresh = &fr},
                         .state = &s,
                         .out = &q};
  kdelta_launch launch = {.struct_size = sizeof(launch)};
  kdelta_context* context = NULL;
  int r, i;
  if (kdelta_context_create(&options, &context) != KDELTA_OK) fail();
  if (kdelta_kda_workspace(context, &kda, &launch.workspace_bytes) != KDELTA_OK) fail();
  launch.workspace = malloc(launch.workspace_bytes + 4096);
  launch.workspace_bytes += 4096;
  for (r = 0; r < REPETITIONS; ++r) {
    double begin = now();
    for (i = 0; i < CALLS; ++i)
      if (kdelta_activation(context, &activation, &launch) != KDELTA_OK) fail();
    printf("activation %.1f\n", (now() - begin) / CALLS);
    begin = now();
    for (i = 0; i < CALLS; ++i)
      if (kdelta_kda(context, &kda, &launch) != KDELTA_OK) fail();
    printf("kda %.1f\n", (now() - begin) / CALLS);
  }
  free(launch.workspace);
  kdelta_context_destroy(context);
  return 0;
}
