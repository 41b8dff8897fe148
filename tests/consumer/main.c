/* What a program in C99 needs of kdelta. */
#include <kdelta/api/c.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
  float gate[4] = {-1, 0, 1, 2}, up[4] = {1, 1, 2, 2}, out[4];
  int64_t shape[2] = {2, 2};
  DLTensor g = {gate, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 0}, u = g, o = g;
  kdelta_activation_args args = {.struct_size = sizeof(args), .kind = KDELTA_SWIGLU, .gate = &g, .up = &u, .out = &o};
  kdelta_launch launch = {.struct_size = sizeof(launch)};
  kdelta_context* context = NULL;
  u.data = up;
  o.data = out;
  if (kdelta_context_create(NULL, &context) != KDELTA_OK ||
      kdelta_activation_workspace(context, &args, &launch.workspace_bytes) != KDELTA_OK) {
    fprintf(stderr, "%s\n", kdelta_last_error());
    return 1;
  }
  launch.workspace = malloc(launch.workspace_bytes + 1);
  if (kdelta_activation(context, &args, &launch) != KDELTA_OK) {
    fprintf(stderr, "%s\n", kdelta_last_error());
    return 1;
  }
  printf("swiglu %g\n", out[3]);
  args.up = NULL;
  if (kdelta_activation(context, &args, &launch) != KDELTA_INVALID_ARGUMENT) return 1;
  printf("refused: %s\n", kdelta_last_error());
  free(launch.workspace);
  kdelta_context_destroy(context);
  return 0;
}
