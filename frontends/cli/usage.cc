#include "frontends/cli/usage.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

namespace kdelta::cli {
namespace {

// Letters to insert, delete or replace, or neighbours to swap, to make one word of the other.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

// The model that comes with the project, where it can be found from here or from the program; else the word MODEL.
std::string default_model() {
  namespace fs = std::filesystem;
  std::error_code unknown;
  const fs::path program = fs::read_symlink("/proc/self/exe", unknown).parent_path();
  for (const fs::path& model : {fs::path("models/tiny-k3"), program / "../models/tiny-k3"})
    if (fs::is_directory(model, unknown)) return model.lexically_normal().string();
  return "MODEL";
}

void replace_first(std::string& message, const std::string& word, const std::string& by) {
  if (const size_t at = message.find(word); at != std::string::npos) message.replace(at, word.size(), by);
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  const auto near = std::ranges::min_element(
      known, [&](const auto& a, const auto& b) { return distance(word, a) < distance(word, b); });
  if (near == known.end()) return "";
  const size_t slips = distance(word, *near),
               letters = word.size() - std::min(word.size(), word.find_first_not_of('-'));
  return slips <= 2 && 2 * slips < letters ? *near : "";
}

std::string no_command(const std::vector<std::string>& words, const std::vector<std::string>& commands) {
  const std::string& word = words.front();
  std::string list;
  for (const std::string& c : commands) list += (list.empty() ? "" : ", ") + c;
  if (const std::string near = nearest(word, {"--help", "--version"}); !near.empty())
    return fmt::format("'{}': no such flag; did you mean {}?", word, near);
  if (word.starts_with("-"))
    return fmt::format("'{}': a command and a model come first, as in: run {} -p \"...\"; commands: {}", word,
                       default_model(), list);
  std::error_code unknown;
  if (std::filesystem::is_directory(word, unknown))
    return fmt::format("'{}': a directory; a command comes first, as in: run {} -p \"...\"", word, word);
  if (const std::string near = nearest(word, commands); !near.empty())
    return fmt::format("'{}': no such command or directory; did you mean '{}'?", word, near);
  return fmt::format("'{}': no such command or directory; commands: {}; the model that comes with kdelta: {}", word,
                     list, default_model());
}

std::string in_words_of_flags(const std::string& message) {
  constexpr std::pair<std::string_view, std::string_view> kFlags[] = {
      {"dtype:", "--dtype:"},
      {"state_dtype:", "--state-dtype:"},
      {"kda_gate:", "--kda-gate:"},
      {"ranks:", "--ranks:"},
      {"threads:", "--threads:"},
      {"isa:", "--isa:"},
      {"device:", "--device:"},
      {"force:", "--force:"},
      {"max_length:", "--max-model-len:"},
      {"max_sequences:", "--max-num-seqs:"},
      {"token_budget:", "--max-num-batched-tokens:"},
      {"cache_tokens:", "--cache-tokens:"},
      {"drafts:", "--drafts:"},
      {"draft_states:", "--draft-states:"},
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
      {"grammar:", "--grammar:"},
      {"json_schema:", "--json-schema:"},
      {"regex:", "--regex:"},
      {"choice:", "--choice:"},
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
    if (message.starts_with(field)) {
      std::string told = std::string(flag) + message.substr(field.size());
      replace_first(told, "at least max_length,", "at least --max-model-len,");
      replace_first(told, "(max_sequences)", "(--max-num-seqs)");
      replace_first(told, "(token_budget)", "(--max-num-batched-tokens)");
      replace_first(told, "at most max_tokens,", "at most --max-tokens,");
      replace_first(told, "but drafts is 0", "but --drafts is 0");
      return told;
    }
  // The prompt may have come from anywhere; what can be changed is the room for it.
  if (message.starts_with("prompt:") && message.find("the context holds") != std::string::npos)
    return message + " (--max-model-len)";
  std::string told = message;
  replace_first(told, "; min_tokens: ", "; --min-tokens: ");
  return told;
}

std::string want_of_memory(std::string message, const LengthFlags& flags) {
  if (message.starts_with("cannot allocate")) {
    message += "; lower " + flags.max_length + (flags.max_sequences.empty() ? " or " : ", ") +
               "--max-num-batched-tokens" + (flags.max_sequences.empty() ? "" : " or " + flags.max_sequences);
    return message;
  }
  replace_first(message, "max_length", flags.max_length);
  replace_first(message, "token_budget", "--max-num-batched-tokens");
  replace_first(message, "max_sequences", flags.max_sequences);
  replace_first(message, "prefix_snapshots", "--prefix-snapshots");
  replace_first(message, ", drafts ", ", --drafts ");
  return message;
}

void check_ids(const char* flag, const std::vector<int32_t>& ids, int64_t vocabulary) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocabulary)
      throw UsageError(fmt::format("{}: token {} at position {}, expected 0 to {}", flag, ids[i], i, vocabulary - 1));
}

}  // namespace kdelta::cli
