// Any text as a config.json with a quantization_config: refused with an Error whose message is UTF-8 and names a field,
// or a list of known schemes.
#include "kdelta/core/check.h"
#include "kdelta/io/fuzz_input.h"
#include "kdelta/model/fuzz_checkpoint.h"
#include "kdelta/model/quantization.h"

namespace {

using namespace kdelta;

void check(const std::string& text) {
  try {
    const JsonReader reader(parse_json(text, {.name = "config.json"}), {.name = "config.json"});
    const auto q = read_quantization(reader);
    if (!q) return;
    for (const QuantizationScheme& scheme : q->schemes) {
      const Precision p = scheme.weights;
      KDELTA_CHECK(p == Precision::mxfp8 || p == Precision::mxfp4, text);
      KDELTA_CHECK(q->names(p) && q->list().find(to_string(p)) != std::string::npos, text);
    }
    KDELTA_CHECK(!q->names(Precision::floating));
    (void)q->doubts({{"model.layers.0.self_attn.q_proj", Precision::mxfp8}});
  } catch (const Error& e) {
    KDELTA_CHECK(e.code() == ErrorCode::bad_file && is_utf8(e.what()), e.what());
    KDELTA_CHECK(std::string_view(e.what()).starts_with("config.json"), e.what());
  }
}

// Groups that begin as they should be and have members taken away, changed and added.
Json grown(fuzz::Input& in) {
  Json q = fuzz::mx_config(in.pick(2) == 0, in.pick(2) == 0, in.pick(2) == 0);
  while (!in.empty()) {
    Json* at = &q;
    while (at->kind() == Json::Kind::object && !at->object().empty() && in.pick(3) != 0)
      at = &at->object()[in.pick(at->object().size())].value;
    if (at->kind() == Json::Kind::object && in.pick(2) == 0) {
      static constexpr const char* kNames[] = {
          "weights", "input_activations", "num_bits",        "type",       "strategy",      "group_size", "symmetric",
          "dynamic", "targets",           "observer_kwargs", "scale_rule", "config_groups", "ignore",     "format",
          "group_2", "actorder",          "scale_dtype",     "version"};
      at->set(in.of(kNames), in.pick(3) == 0 ? fuzz::mx_arguments(in.byte() % 10) : fuzz::odd_value(in));
    } else {
      *at = fuzz::odd_value(in);
    }
  }
  return q;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  if (in.pick(2) == 0)
    check(std::string(in.rest()));
  else
    check(json_text(Json::Object{{"quantization_config", grown(in)}}));
  return 0;
}
