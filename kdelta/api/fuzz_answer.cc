// A small checkpoint changed at random, quantised groups first, answers when it loads: a request ends with its tokens,
// or with an error of its own, and says the same alone and in company, from the factored gate and, whatever it says,
// from the composed one.
#include "kdelta/core/check.h"
#include "kdelta/model/fuzz_checkpoint.h"
#include "kdelta/model/load.h"
#include "kdelta/runtime/engine.h"

namespace {

using namespace kdelta;

struct Answer {
  std::vector<int32_t> tokens;
  std::string error;
  bool ended = false;
  bool operator==(const Answer&) const = default;
};

runtime::EngineConfig config(bool exact_dtype) {
  runtime::EngineConfig c;
  c.model_id = 7;
  c.max_length = 64;
  c.token_budget = 64;
  c.max_sequences = 3;
  if (exact_dtype) c.activation = DType::f32;
  c.options.threads = 1;
  c.options.isa = IsaLevel::portable;
  return c;
}

std::vector<Answer> answers(runtime::Engine& engine, const std::vector<std::vector<int32_t>>& prompts) {
  std::vector<Answer> out(prompts.size());
  std::vector<runtime::RequestId> ids;
  for (const auto& prompt : prompts) ids.push_back(engine.submit(prompt, {.max_tokens = 3}));
  while (engine.step([&](const runtime::TokenEvent& e) {
    Answer& a = out[static_cast<size_t>(std::find(ids.begin(), ids.end(), e.id) - ids.begin())];
    KDELTA_CHECK(!a.ended);
    if (e.token >= 0) a.tokens.push_back(e.token);
    if (e.error != nullptr) a.error = *e.error;
    a.ended = e.finish != runtime::FinishReason::none;
  }))
    continue;
  for (const Answer& a : out) {
    KDELTA_CHECK(a.ended && (a.error.empty() ? !a.tokens.empty() : is_utf8(a.error)), a.error);
  }
  return out;
}

void answer(const LoadChoices& choices, bool fp32) {
  LoadedModel m;
  try {
    m = load_model(fuzz::ChangedCheckpoint::directory(), LoadFormat::checkpoint, choices);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::internal) throw;
    return;
  }
  runtime::Engine engine(*m.model, config(fp32));
  const std::vector<std::vector<int32_t>> prompts = {{1, 2, 3}, {4}, {5, 6, 7, 0, 1}};
  const std::vector<Answer> together = answers(engine, prompts);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<Answer> alone = answers(engine, {prompts[i]});
    KDELTA_CHECK(alone[0] == together[i], i, alone[0].error, together[i].error);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  const bool fp32 = in.pick(4) == 1;
  const fuzz::ChangedCheckpoint changed(in);
  LoadChoices choices;
  choices.options.threads = 1;
  choices.options.isa = IsaLevel::portable;
  for (const GateChoice gate : {GateChoice::factored, GateChoice::composed}) {
    choices.kda_gate = gate;
    answer(choices, fp32);
  }
  return 0;
}
