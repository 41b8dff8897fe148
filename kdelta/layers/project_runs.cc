#include "kdelta/layers/project_runs.h"

#include "kdelta/ops/mx_quant/mx_quant.h"

namespace kdelta {

void project_runs(const Exec& ex, const AnyConstView& x, std::span<const LinearPart> parts) {
  for (size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    while (end < parts.size() && stored_alike(parts[end].w, parts[begin].w)) ++end;
    Arena::Scope scope(*ex.scratch);
    LinearArgs args{
        .x = x, .w = parts[begin].w, .out = parts[begin].out, .more = parts.subspan(begin + 1, end - begin - 1)};
    if (const MxInput& input = args.w.input; input.quantised()) {
      const View<uint8_t> codes = ex.scratch->take<uint8_t>(x.shape),
                          scale = ex.scratch->take<uint8_t>({x.dim(0), mx_scale_bytes(x.dim(1))});
      mx_quantize(ex, {.format = input.format, .rule = input.rule, .x = x, .codes = codes, .scale = scale});
      args.x = AnyConstView(codes.data, input.format, x.shape);
      args.x_scale = scale;
    }
    linear(ex, args);
  }
}

}  // namespace kdelta
