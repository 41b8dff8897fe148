// A small checkpoint changed at random, quantised with random settings: refused with an Error whose message is UTF-8
// and nothing left under the new name, or written - the sizes that a dry run promised, one description for each scheme,
// and a checkpoint that loads when the source does and nothing is int8. A second run of the same job does the same.
#include <filesystem>

#include "kdelta/api/quantize.h"
#include "kdelta/core/check.h"
#include "kdelta/model/fuzz_checkpoint.h"
#include "kdelta/model/load.h"

namespace {

using namespace kdelta;
namespace fs = std::filesystem;

// Empty: it loads.
std::string load_error(const std::string& directory) {
  try {
    LoadChoices choices;
    choices.options.threads = 1;
    choices.options.isa = IsaLevel::portable;
    (void)load_model(directory, LoadFormat::checkpoint, choices);
    return {};
  } catch (const Error& e) {
    if (e.code() == ErrorCode::internal) throw;
    return e.what();
  }
}

bool quantise(const QuantizeOptions& o, QuantizeReport* report) {
  try {
    *report = quantize(o);
    return true;
  } catch (const Error& e) {
    KDELTA_CHECK(e.code() == ErrorCode::bad_file || e.code() == ErrorCode::unsupported ||
                     e.code() == ErrorCode::invalid_argument,
                 e.what());
    KDELTA_CHECK(is_utf8(e.what()), e.what());
    KDELTA_CHECK(!fs::exists(o.out), o.out);
    return false;
  }
}

QuantizeOptions options(fuzz::Input& in) {
  static constexpr const char* kFormats[] = {"mxfp8", "mxfp4", "keep", "int8"};
  static constexpr const char* kRules[] = {"floor", "rceil", "even"};
  QuantizeOptions o;
  o.qkv = in.of(kFormats);
  o.experts = in.of(kFormats);
  o.weight_rule = in.of(kRules);
  o.activation_rule = in.of(kRules);
  o.threads = 1;
  return o;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  QuantizeOptions o = options(in);
  const fuzz::ChangedCheckpoint changed(in);
  o.model = fuzz::ChangedCheckpoint::directory();
  o.out = o.model + ".quantised";
  fs::remove_all(o.out);
  fs::remove_all(o.out + ".partial");
  QuantizeReport plan, done;
  o.dry_run = true;
  const bool planned = quantise(o, &plan);
  KDELTA_CHECK(!fs::exists(o.out + ".partial"));
  o.dry_run = false;
  const bool written = quantise(o, &done);
  KDELTA_CHECK(planned || !written);
  if (!written) return 0;  // values that are not finite are found when they are read
  KDELTA_CHECK(plan.bytes_after == done.bytes_after && plan.groups.size() == done.groups.size());
  const Checkpoint result = Checkpoint::open(o.out);
  KDELTA_CHECK(result.total_bytes() == done.bytes_after);
  if (o.qkv == "int8" || o.experts == "int8" || !load_error(o.model).empty()) return 0;
  KDELTA_CHECK(load_error(o.out).empty(), load_error(o.out));
  return 0;
}
