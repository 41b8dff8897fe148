#include "kdelta/runtime/scheduler.h"

#include <algorithm>

#include "kdelta/runtime/capacity.h"

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
    const auto n = static_cast<int>(candidates_.size());
    for (int i = 0; i < n; ++i)
      if (at(i).running && !in_prefill(at(i)) && !gone(i)) try_row(i, 1, false);
    extend_decodes();
    plan_prefills();
    // Decode rows were planned first; prefill rows lie first. Both keep their order (in place: nothing is allocated).
    size_t prefills = 0;
    for (size_t r = 0; r < plan_.rows.size(); ++r)
      if (plan_.rows[r].prefill) {
        const auto begin = plan_.rows.begin();
        std::rotate(begin + static_cast<int64_t>(prefills), begin + static_cast<int64_t>(r),
                    begin + static_cast<int64_t>(r) + 1);
        ++prefills;
      }
  }

 private:
  const Candidate& at(int i) const { return candidates_[static_cast<size_t>(i)]; }
  bool gone(int i) const { return plan_.taken[static_cast<size_t>(i)] != 0; }

  // Pages that candidate i lacks for `tokens` more tokens.
  int64_t lacking(int i, int64_t tokens) const {
    return std::max<int64_t>(0, pages_for(at(i).computed + tokens, config_.page_tokens) - at(i).pages);
  }

  // Takes pages from the youngest running candidates that came after i and have no row yet, until `pages` are free.
  bool make_room(int i, int64_t pages) {
    for (int j = static_cast<int>(candidates_.size()) - 1; j > i && free_pages_ < pages; --j) {
      if (!at(j).running || gone(j)) continue;
      plan_.preempted.push_back(j);
      plan_.taken[static_cast<size_t>(j)] = 1;
      free_pages_ += at(j).freed_pages;
    }
    return free_pages_ >= pages;
  }

  bool try_row(int i, int64_t tokens, bool prefill) {
    if (static_cast<int64_t>(plan_.rows.size()) >= config_.max_sequences || (!prefill && budget_ < tokens))
      return false;
    const int64_t pages = lacking(i, tokens);
    if (!at(i).running && !may_start(i)) return false;
    if (at(i).running && !make_room(i, pages)) return false;
    if (!at(i).running) {
      --free_sequences_;
      plan_.admitted.push_back(i);
    }
    take(pages, tokens);
    plan_.taken[static_cast<size_t>(i)] = 1;
    plan_.rows.push_back({.candidate = i, .tokens = tokens, .prefill = prefill});
    return true;
  }

  // A waiting candidate starts when all that is known of it fits without preempting anybody: started earlier it would
  // only be preempted again.
  bool may_start(int i) const {
    return free_sequences_ > held_sequences_ && lacking(i, at(i).known - at(i).computed) + held_pages_ <= free_pages_;
  }

  // Its leader is as far as it would be itself, and comes before it in every step: what the leader still lacks is no
  // more than what this one would have to compute.
  bool worth_waiting(int i) const {
    const Candidate& c = at(i);
    return !c.running && c.leader >= 0 && at(c.leader).computed >= c.computed &&
           c.awaited - c.computed >= config_.wait_from;
  }

  // Keeps its place from later arrivals. What runs may still take the pages, as it may from one that is admitted.
  void wait(int i) {
    ++held_sequences_;
    held_pages_ += lacking(i, at(i).known - at(i).computed);
    plan_.waiting.push_back(i);
  }

  void take(int64_t pages, int64_t tokens) {
    budget_ -= std::min(budget_, tokens);
    free_pages_ -= pages;
    plan_.new_pages += pages;
  }

  // Replayed tokens and drafts, as far as budget and free pages go.
  void extend_decodes() {
    if (config_.columns == 1) return;
    const auto n = static_cast<int>(candidates_.size());
    bool waiting = false;
    for (int i = 0; i < n; ++i) waiting = waiting || (in_prefill(at(i)) && !gone(i));
    int64_t spare = budget_ - (waiting ? config_.prefill_grid : 0);
    for (PlanRow& row : plan_.rows) {
      const Candidate& c = at(row.candidate);
      const int64_t certain = std::min(config_.columns, c.known - c.computed);
      const bool reaches_end = c.computed + certain == c.known;
      int64_t want = std::min(config_.columns, certain + (reaches_end ? c.drafts : 0)) - 1;
      want = std::min(want, std::max<int64_t>(spare, 0));
      while (want > 0 && lacking(row.candidate, 1 + want) - lacking(row.candidate, 1) > free_pages_) --want;
      take(lacking(row.candidate, 1 + want) - lacking(row.candidate, 1), want);
      spare -= want;
      row.tokens += want;
      row.drafts = std::max<int64_t>(0, row.tokens - certain);
    }
  }

  // The oldest first with half of the budget, the others a grid piece each; then what is left, oldest first.
  void plan_prefills() {
    const auto n = static_cast<int>(candidates_.size());
    const size_t first_row = plan_.rows.size();
    bool may_admit = true;  // later arrivals do not overtake one that cannot start
    for (int i = 0; i < n; ++i) {
      if (gone(i) || (at(i).running ? !in_prefill(at(i)) : !may_admit)) continue;
      if (worth_waiting(i) && may_start(i)) {
        wait(i);
        continue;
      }
      const bool planned = try_prefill(i, plan_.rows.size() == first_row);
      may_admit = may_admit && (planned || at(i).running);
    }
    for (size_t r = first_row; r < plan_.rows.size() && budget_ > 0; ++r) extend_prefill(plan_.rows[r]);
  }

  bool try_prefill(int i, bool oldest) {
    if (!in_prefill(at(i))) return try_row(i, 1, false);  // starts behind a prefix or a saved state
    const int64_t grid = config_.prefill_grid;
    const int64_t share = oldest ? std::max(grid, budget_ / 2 / grid * grid) : grid;
    int64_t tokens = prefill_piece(config_, at(i), std::min(share, budget_));
    if (tokens == 0 && plan_.rows.empty()) tokens = prefill_piece(config_, at(i), std::max(budget_, grid));
    return tokens > 0 && try_row(i, tokens, true);
  }

  void extend_prefill(PlanRow& row) {
    if (!row.prefill) return;
    const int64_t more = prefill_piece(config_, at(row.candidate), row.tokens + budget_) - row.tokens;
    const int64_t pages = lacking(row.candidate, row.tokens + more) - lacking(row.candidate, row.tokens);
    if (more <= 0 || pages > free_pages_) return;
    take(pages, more);
    row.tokens += more;
  }

  const SchedulerConfig& config_;
  std::span<const Candidate> candidates_;
  int64_t free_sequences_, free_pages_, budget_;
  int64_t held_sequences_ = 0, held_pages_ = 0;  // of those who wait for a state
  Plan& plan_;
};

std::string range(const Candidate& c, int64_t tokens) {
  return "tokens " + std::to_string(c.computed) + ".." + std::to_string(c.computed + tokens - 1) + " of " +
         std::to_string(c.known);
}

std::string why(const SchedulerConfig& config, const Candidate& c, const PlanRow& row) {
  const int64_t end = c.computed + row.tokens;
  if (row.prefill) {
    if (end == c.prompt) return c.computed == 0 ? "prefill, the whole prompt" : "prefill, the prompt's end";
    if (end == c.prompt - 1 && config.prefill_grid > 1 && end % config.prefill_grid == 0)
      return "prefill, the last token behind the grid follows as a decode row";
    return "prefill, cut on the grid of " + std::to_string(config.prefill_grid) + " by the budget";
  }
  const std::string drafts = row.drafts > 0 ? ", verifies " + std::to_string(row.drafts) + " drafts" : "";
  if (c.computed < c.prompt) return "decode, the prompt's last token with a state before it" + drafts;
  if (c.known - c.computed > 1) return "decode, replays output after a preemption" + drafts;
  return "decode" + drafts;
}

}  // namespace

void plan_step(const SchedulerConfig& config, std::span<const Candidate> candidates, int64_t free_sequences,
               int64_t free_pages, Plan* plan) {
  plan->rows.clear();
  plan->admitted.clear();
  plan->preempted.clear();
  plan->waiting.clear();
  plan->new_pages = 0;
  plan->taken.assign(candidates.size(), 0);
  Planner(config, candidates, free_sequences, free_pages, *plan).run();
}

void bound_candidates(std::span<const Candidate> candidates, const SchedulerConfig& config, const Plan& plan,
                      std::vector<Candidate>* next) {
  next->assign(candidates.begin(), candidates.end());
  for (const int i : plan.admitted) (*next)[static_cast<size_t>(i)].running = true;
  for (const PlanRow& row : plan.rows) {
    Candidate& c = (*next)[static_cast<size_t>(row.candidate)];
    c.computed += row.tokens;
    c.pages = std::max(c.pages, pages_for(c.computed, config.page_tokens));
    c.known = std::max(c.known, c.computed + (c.computed >= c.known ? 1 : 0));
    c.drafts = 0;
  }
  for (const int i : plan.preempted) {
    Candidate& c = (*next)[static_cast<size_t>(i)];
    c.running = false;
    c.computed = c.pages = c.freed_pages = 0;
  }
}

std::string explain_plan(const SchedulerConfig& config, std::span<const Candidate> candidates, const Plan& plan) {
  std::string out;
  const auto line = [&](int i, const std::string& text) {
    out += "  request " + std::to_string(i) + ": " + text + "\n";
  };
  for (const PlanRow& row : plan.rows) {
    const Candidate& c = candidates[static_cast<size_t>(row.candidate)];
    line(row.candidate, range(c, row.tokens) + ", " + why(config, c, row));
  }
  for (const int i : plan.preempted) line(i, "preempted, an earlier arrival needs its pages");
  for (const int i : plan.waiting) {
    const Candidate& c = candidates[static_cast<size_t>(i)];
    line(i, "waits for tokens " + std::to_string(c.computed) + ".." + std::to_string(c.awaited - 1) +
                ", which request " + std::to_string(c.leader) + " computes");
  }
  for (size_t i = 0; i < candidates.size(); ++i)
    if (plan.taken[i] == 0 && std::ranges::find(plan.waiting, static_cast<int>(i)) == plan.waiting.end())
      line(static_cast<int>(i),
           candidates[i].running ? "runs on later, budget or pages are used up" : "waits for a slot, pages or budget");
  return out;
}

}  // namespace kdelta::runtime
