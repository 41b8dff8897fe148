// The kernels of every op by name. A new op is a line here (tools/check_ops says which is missing).
#include "kdelta/ops/activation/variants.h"
#include "kdelta/api/options.h"
#include "kdelta/ops/all_gather/variants.h"
#include "kdelta/ops/all_reduce/variants.h"
#include "kdelta/ops/attn_res/variants.h"
#include "kdelta/ops/dequant_situ/variants.h"
#include "kdelta/ops/embed/variants.h"
#include "kdelta/ops/gated_norm/variants.h"
#include "kdelta/ops/grouped_linear/variants.h"
#include "kdelta/ops/kda/decode_variants.h"
#include "kdelta/ops/kda/variants.h"
#include "kdelta/ops/linear/variants.h"
#include "kdelta/ops/mla/variants.h"
#include "kdelta/ops/moe_combine/variants.h"
#include "kdelta/ops/mx_quant/variants.h"
#include "kdelta/ops/norm/variants.h"
#include "kdelta/ops/router/variants.h"
#include "kdelta/ops/sample/variants.h"
#include "kdelta/ops/short_conv/variants.h"

namespace kdelta {
namespace {

template <class Rows>
OpVariants names_of(const char* op, const Rows& rows) {
  OpVariants out{.op = op, .variants = {}};
  for (const auto& row : rows) out.variants.push_back({row.name, to_string(row.needs)});
  return out;
}

}  // namespace

std::vector<OpVariants> op_variants() {
  return {names_of("activation", activation_variants()),
          names_of("all_gather", all_gather_variants()),
          names_of("all_reduce", all_reduce_variants()),
          names_of("attn_res", attn_res_variants()),
          names_of("dequant_situ", dequant_situ_variants()),
          names_of("embed", embed_variants()),
          names_of("gated_norm", gated_norm_variants()),
          names_of("grouped_linear", grouped_linear_variants()),
          names_of("kda", kda_variants()),
          names_of("kda_decode", kda_decode_variants()),
          names_of("linear", linear_variants()),
          names_of("mla", mla_variants()),
          names_of("mla_append", mla_append_variants()),
          names_of("moe_combine", moe_combine_variants()),
          names_of("mx_dequantize", mx_dequantize_variants()),
          names_of("mx_quantize", mx_quantize_variants()),
          names_of("norm", norm_variants()),
          names_of("router", router_variants()),
          names_of("sample", sample_variants()),
          names_of("sample_device", sample_device_variants()),
          names_of("short_conv", short_conv_variants())};
}

}  // namespace kdelta
