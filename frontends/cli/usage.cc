#include "frontends/cli/usage.h"

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace kdelta::cli {

std::string in_words_of_flags(const std::string& message) {
  constexpr std::pair<std::string_view, std::string_view> kFlags[] = {
      {"dtype:", "--dtype:"},
      {"state_dtype:", "--state-dtype:"},
      {"kda_gate:", "--kda-gate:"},
      {"threads:", "--threads:"},
      {"isa:", "--isa:"},
      {"force:", "--force:"},
      {"max_length:", "--max-model-len:"},
      {"max_sequences:", "--max-num-seqs:"},
      {"token_budget:", "--max-num-batched-tokens:"},
      {"cache_tokens:", "--cache-tokens:"},
      {"drafts:", "--drafts:"},
      {"draft_model:", "--draft-model:"},
      {"draft model:", "--draft-model:"},
      {"prefix_snapshots:", "--prefix-snapshots:"},
      {"input:", "--input:"},
      {"output:", "--output:"},
      {"sampling: temperature:", "--temperature:"},
      {"sampling: top_p:", "--top-p:"},
      {"sampling: min_p:", "--min-p:"},
      {"sampling: repetition_penalty:", "--repetition-penalty:"},
      {"sampling: presence_penalty:", "--presence-penalty:"},
      {"sampling: frequency_penalty:", "--frequency-penalty:"},
      {"top_k:", "--top-k:"},
      {"max_tokens:", "--max-tokens:"},
      {"min_tokens:", "--min-tokens:"},
      {"logprobs:", "--logprobs:"},
      {"logit_bias:", "--logit-bias:"},
      {"stop:", "--stop:"},
      {"effort:", "--effort:"},
      {"thinking effort", "--effort:"},
      {"tools:", "--tools:"},
      {"window:", "--window:"},
      {"chunk:", "--chunk:"},
      {"dump:", "--dump:"},
      {"out:", "--out:"},
      {"qkv:", "--qkv:"},
      {"experts:", "--experts:"},
      {"weight_rule:", "--scale-rule:"},
      {"activation_rule:", "--activation-scale-rule:"},
      {"depth:", "--n-depth:"}};
  for (const auto& [field, flag] : kFlags)
    if (message.starts_with(field)) return std::string(flag) + message.substr(field.size());
  // The prompt may have come from anywhere; what can be changed is the room for it.
  if (message.starts_with("prompt:") && message.find("the context holds") != std::string::npos)
    return message + " (--max-model-len)";
  return message;
}

void check_ids(const char* flag, const std::vector<int32_t>& ids, int64_t vocabulary) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocabulary)
      throw UsageError(fmt::format("{}: token {} at position {}, expected 0 to {}", flag, ids[i], i, vocabulary - 1));
}

}  // namespace kdelta::cli
