#include "kdelta/api/c_context.h"

#include <unistd.h>

#include "kdelta/api/c_status.h"
#include "kdelta/api/options.h"

using namespace kdelta;

namespace {

std::unique_ptr<kdelta_context> make_context(const kdelta_context_options& o) {
  LoadOptions checked;  // whose fields mean the same, and are checked in one place
  switch (o.device_type) {
    case kDLCPU:
      if (o.device_id != 0) fail(ErrorCode::invalid_argument, "device_id: ", o.device_id, ", expected 0 for the CPU");
      break;
    case kDLCUDA:
      checked.device = str("cuda:", o.device_id);
      break;
    default:
      fail(ErrorCode::invalid_argument, "device_type: ", o.device_type, ", expected 1 (kDLCPU) or 2 (kDLCUDA)");
  }
  checked.threads = o.threads;
  if (o.isa != nullptr) checked.isa = o.isa;
  if (o.force != nullptr) checked.force = o.force;
  check_options(checked);
  auto context = std::make_unique<kdelta_context>();
  context->owner = getpid();
  context->options.exact = o.exact != 0;
  context->options.threads = o.threads;
  if (!checked.isa.empty()) context->options.isa = parse_isa(checked.isa);
  context->options.parse_force(checked.force);
  if (o.device_type == kDLCUDA)
    context->device = {DeviceKind::cuda, o.device_id};
  else
    context->threads = std::make_unique<ThreadPool>(o.threads);
  return context;
}

}  // namespace

kdelta_status kdelta_context_create(const kdelta_context_options* options, kdelta_context** out) {
  return c::guarded([&] {
    c::expect_given(out, "kdelta_context_create", "out");
    *out = nullptr;
    const kdelta_context_options usual;
    *out =
        make_context(c::read_struct(options == nullptr ? &usual : options, "kdelta_context_create: options")).release();
  });
}

void kdelta_context_destroy(kdelta_context* context) {
  delete context;
}
