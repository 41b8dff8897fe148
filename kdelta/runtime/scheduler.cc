#include "kdelta/runtime/scheduler.h"

#include <algorithm>

namespace kdelta::runtime {
namespace {

bool in_prefill(const Candidate& c) {
  const int64_t left = c.prompt - c.computed;
  return left > 1 || (left == 1 && c.computed == 0);
}

// Tokens of the next piece of a prefill under `budget`; 0 when it must wait for a fuller budget.
int64_t prefill_piece(const SchedulerConfig& config, const Candidate& c, int64_t budget) {
  const int64_t grid = config.prefill_grid;
  int64_t end = std::min(c.prompt, c.computed + budget);
  if (end < c.prompt) end = end / grid * grid;
  // A lone token behind a grid point is always computed as a decode row, whichever way the prompt was cut before it.
  if (end == c.prompt && grid > 1 && c.prompt % grid == 1 && c.computed < c.prompt - 1) end = c.prompt - 1;
  return std::max<int64_t>(0, end - c.computed);
}

int64_t pages_for(const SchedulerConfig& config, int64_t tokens) {
  return (tokens + config.page_tokens - 1) / config.page_tokens;
}

class Planner {
 public:
  Planner(const SchedulerConfig& config, std::span<const Candidate> candidates, int64_t free_sequences,
          int64_t free_pages, Plan& plan)
      : config_(config),
        candidates_(candidates),
        free_sequences_(free_sequences),
        free_pages_(free_pages),
        budget_(config.token_budget),
        plan_(plan) {}

  void run() {
    for (size_t i = 0; i < candidates_.size(); ++i)
      if (candidates_[i].running && !in_prefill(candidates_[i])) try_row(static_cast<int>(i), 1, false);
    for (size_t i = 0; i < candidates_.size(); ++i)
      if (in_prefill(candidates_[i]) && !try_prefill(static_cast<int>(i))) break;  // later arrivals do not overtake
    const auto first = std::find_if(plan_.rows.begin(), plan_.rows.end(), [](const PlanRow& r) { return r.prefill; });
    std::rotate(plan_.rows.begin(), first, plan_.rows.end());
  }

 private:
  bool try_prefill(int i) {
    const Candidate& c = candidates_[static_cast<size_t>(i)];
    int64_t tokens = prefill_piece(config_, c, budget_);
    if (tokens == 0 && plan_.rows.empty()) tokens = prefill_piece(config_, c, std::max(budget_, config_.prefill_grid));
    if (tokens == 0) return false;
    if (!c.running && free_sequences_ == 0) return false;
    if (!try_row(i, tokens, true)) return false;
    if (!c.running) {
      --free_sequences_;
      plan_.admitted.push_back(i);
    }
    return true;
  }

  bool try_row(int i, int64_t tokens, bool prefill) {
    const Candidate& c = candidates_[static_cast<size_t>(i)];
    const int64_t pages = std::max<int64_t>(0, pages_for(config_, c.computed + tokens) - c.pages);
    if (static_cast<int64_t>(plan_.rows.size()) >= config_.max_sequences || pages > free_pages_) return false;
    if (!prefill && budget_ < tokens) return false;
    budget_ -= std::min(budget_, tokens);
    free_pages_ -= pages;
    plan_.new_pages += pages;
    plan_.rows.push_back({.candidate = i, .tokens = tokens, .prefill = prefill});
    return true;
  }

  const SchedulerConfig& config_;
  std::span<const Candidate> candidates_;
  int64_t free_sequences_, free_pages_, budget_;
  Plan& plan_;
};

}  // namespace

void plan_step(const SchedulerConfig& config, std::span<const Candidate> candidates, int64_t free_sequences,
               int64_t free_pages, Plan* plan) {
  plan->rows.clear();
  plan->admitted.clear();
  plan->new_pages = 0;
  Planner(config, candidates, free_sequences, free_pages, *plan).run();
}

}  // namespace kdelta::runtime
