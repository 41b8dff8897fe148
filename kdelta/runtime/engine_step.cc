// Engine::step, part by part in the order in which they run.
#include <algorithm>

#include "kdelta/core/check.h"
#include "kdelta/core/communicator.h"
#include "kdelta/runtime/engine.h"

namespace kdelta::runtime {

bool Engine::step(const std::function<void(const TokenEvent&)>& on_event) {
  events_.clear();
  std::erase_if(requests_, [](const auto& r) { return r->finish != FinishReason::none; });
  if (requests_.empty()) return false;
  const TraceRange range("step");
  draft();
  plan();
  hand_out_memory();
  explanation_.clear();
  note([this] { return explain_rows(); });
  if (!rows_.empty()) run_step();
  deliver(on_event);
  return true;
}

// For people: a step does not fail for want of an explanation.
template <class F>
void Engine::note(const F& text) {
  if (!explain_) return;
  try {
    explanation_ += text();
  } catch (const std::bad_alloc&) {
    explanation_.clear();
  }
}

std::string Engine::explain_rows() const {
  std::string out = explain_plan(scheduler_, candidates_, step_plan_);
  for (const int i : step_plan_.admitted) {
    const Reuse& reuse = live_[static_cast<size_t>(i)]->reuse;
    out += str("  request ", i, ": starts behind ", reuse.tokens, " tokens of earlier prompts; ",
               to_string(reuse.limit), "\n");
  }
  return out;
}

void Engine::plan() {
  const auto running =
      std::count_if(requests_.begin(), requests_.end(), [](const auto& r) { return !r->slots.empty(); });
  const int64_t free = config_.max_sequences - running;
  const auto attempt = [&](int64_t offers) {
    gather_candidates(offers);
    plan_step(scheduler_, candidates_, free, usable_pages(), &step_plan_);
    return !step_plan_.rows.empty() || !step_plan_.preempted.empty();
  };
  if (attempt(free)) return;
  // Pages that are offered to those who wait cannot be evicted for one that runs, or for the first: with its own offer
  // alone that one fits.
  withdraw_offers();
  KDELTA_CHECK(attempt(running == 0 ? 1 : 0), "a plan without work, with ", free, " sequences and ", usable_pages(),
               " pages free\n", explain_plan(scheduler_, candidates_, step_plan_));
}

void Engine::withdraw_offers() {
  for (Request* r : live_)
    if (r->slots.empty() && !r->pages.empty()) give_back(*r);
}

// Asks for drafts for every request that decodes and knows all its tokens but the next.
void Engine::draft() {
  if (config_.drafts == 0) return;
  size_t n = 0;
  for (const auto& r : requests_) {
    if (r->slots.empty() || r->known() - r->computed != 1 || r->computed < static_cast<int64_t>(r->prompt.size()) - 1)
      continue;
    // The step's own token is certain to come; drafts behind the last one wanted would be computed for nothing.
    const int64_t most = std::min(config_.drafts, r->options.max_tokens - r->generated() - 1);
    queries_[n].request = r.get();
    queries_[n].most = std::max<int64_t>(most, 0);
    queries_[n++].tokens.clear();
  }
  const std::span<DraftQuery> queries = std::span(queries_).first(n);
  try {
    drafter_->propose(queries);
  } catch (const std::exception&) {
    // Guesses are not needed. What the drafter knew of these requests may be half written.
    ++stats_.failed_proposals;
    for (DraftQuery& query : queries) {
      query.tokens.clear();
      drafter_->forget(query.request->id);
    }
  }
  size_t q = 0;
  for (const auto& r : requests_) {
    if (q == n || queries[q].request != r.get()) continue;
    const std::vector<int32_t>& tokens = queries[q].tokens;
    r->drafts = std::min(queries[q++].most, static_cast<int64_t>(tokens.size()));
    r->output.insert(r->output.end(), tokens.begin(), tokens.begin() + r->drafts);
    if (r->options.constraint) drop_refused_drafts(*r);
  }
}

// What its constraint refuses would be computed for nothing.
void Engine::drop_refused_drafts(Request& r) {
  const auto before = static_cast<size_t>(r.generated());
  const std::span<const int32_t> output = r.output;
  try {
    r.drafts = r.options.constraint->accepted(output.first(before), output.subspan(before));
  } catch (const std::exception&) {  // the mask will say so
    r.drafts = 0;
  }
  r.output.resize(before + static_cast<size_t>(r.drafts));
}

void Engine::gather_candidates(int64_t offers) {
  candidates_.clear();
  live_.clear();
  hits_.clear();
  for (const auto& r : requests_) {
    live_.push_back(r.get());
    Candidate c{.prompt = static_cast<int64_t>(r->prompt.size()),
                .known = r->known(),
                .computed = r->computed,
                .running = !r->slots.empty(),
                .drafts = r->drafts};
    hits_.push_back({.reuse = {.limit = ReuseLimit::withheld}});
    // Whoever waits uses up an offer, though a saved state needs none: only the first `offers` may start.
    const bool may_start = !c.running && offers-- > 0;
    if (may_start && r->saved.empty() && config_.prefix_snapshots > 0) {
      offer_prefix(*r, c);
      find_leader(*r, c);
    }
    c.pages = static_cast<int64_t>(r->pages.size());
    c.freed_pages = c.pages - r->shared_pages;
    candidates_.push_back(c);
  }
}

// A waiting request becomes an owner of the pages it would start with, so that they do not count as free; it gives them
// back when it is not admitted.
void Engine::offer_prefix(Request& r, Candidate& c) {
  hits_.back() = prefixes_->find(r.prompt);
  prefixes_->share(hits_.back(), r.pages);
  r.shared_pages = static_cast<int64_t>(r.pages.size());
  c.computed = hits_.back().reuse.tokens;
}

// Of the earlier ones that have prompt tokens left, the one that it has most in common with. Who is earlier only ever
// leaves, so what was found is asked for again only when it left or has passed the point.
void Engine::find_leader(Request& r, Candidate& c) {
  const size_t end = candidates_.size();  // before its own
  const auto computes = [&](size_t i, int64_t tokens) {
    return candidates_[i].computed < std::min(candidates_[i].prompt, tokens);
  };
  if (r.leader > 0)
    for (size_t i = 0; i < end; ++i)
      if (live_[i]->id == r.leader && computes(i, r.awaited)) c.leader = static_cast<int>(i);
  if (c.leader < 0 && r.leader != 0) {
    r.leader = r.awaited = 0;
    for (size_t i = 0; i < end; ++i) {
      if (!computes(i, candidates_[i].prompt)) continue;
      const int64_t tokens = prefixes_->common(live_[i]->prompt, r.prompt);
      if (tokens <= r.awaited || !computes(i, tokens)) continue;
      c.leader = static_cast<int>(i);
      r.leader = live_[i]->id;
      r.awaited = tokens;
    }
  }
  c.awaited = r.awaited;
}

int64_t Engine::usable_pages() const {
  return pool_->free_pages() + (config_.prefix_snapshots > 0 ? prefixes_->evictable_pages() : 0);
}

// Its state is kept when the room for that suffices, else it starts anew and comes to the same bits: the prompt on the
// same grid, the tokens behind it as decode rows.
void Engine::preempt(Request& r) {
  ++stats_.preempted;
  r.output.resize(r.output.size() - static_cast<size_t>(r.drafts));
  r.drafts = 0;
  if (save(r))
    ++stats_.saved;
  else
    r.computed = 0;
  r.accepted = 1;
  give_back(r);
  if (drafter_) drafter_->forget(r.id);
}

bool Engine::save(Request& r) {
  const int64_t bytes = pool_->saved_bytes(r.computed);
  if (r.computed == 0 || saved_bytes_ + bytes > config_.save_bytes) return false;
  try {
    r.saved.resize(static_cast<size_t>(bytes));
  } catch (const std::bad_alloc&) {
    return false;
  }
  pool_->settle(r.slots, r.accepted);
  pool_->save(r.slots[0], r.pages, r.computed, r.saved);
  saved_bytes_ += bytes;
  return true;
}

// An admitted request gets its slots, and what it starts with in them.
void Engine::start(Request& r, size_t candidate) {
  r.slots.push_back(pool_->take_slot());
  for (int64_t c = 1; c < capacity_.columns && pool_->has_draft_slots(); ++c)
    r.slots.push_back(pool_->take_draft_slot());
  r.accepted = 1;
  if (!r.saved.empty() || config_.prefix_snapshots == 0) return;
  PrefixCache::Hit& hit = hits_[candidate];
  if (hit.reuse.limit == ReuseLimit::withheld) hit = prefixes_->withhold(r.prompt);
  prefixes_->use(hit, r.slots[0]);
  r.reuse = hit.reuse;
  r.computed = r.reuse.tokens;
  if (r.waited_for > 0 && r.computed >= r.waited_for) ++stats_.followed;
}

void Engine::hand_out_memory() {
  for (const int i : step_plan_.preempted) preempt(*live_[static_cast<size_t>(i)]);
  for (const int i : step_plan_.waiting) {
    Request& r = *live_[static_cast<size_t>(i)];
    r.waited_for = r.awaited;
  }
  for (const int i : step_plan_.admitted) start(*live_[static_cast<size_t>(i)], static_cast<size_t>(i));
  withdraw_offers();  // of those that have to wait
  rows_.clear();
  row_snapshots_.clear();
  for (const PlanRow& row : step_plan_.rows) {
    Request& r = *live_[static_cast<size_t>(row.candidate)];
    const int64_t need = pages_for(r.computed + row.tokens, config_.page_tokens);
    while (static_cast<int64_t>(r.pages.size()) < need) {
      if (pool_->free_pages() == 0)
        KDELTA_CHECK(prefixes_->evict_page(), "the plan counted on a page that is not free");
      r.pages.push_back(pool_->take_page());
    }
    if (!r.saved.empty()) {
      pool_->load(r.saved, r.computed, r.slots[0], r.pages);
      drop_saved(r);
    }
    r.output.resize(r.output.size() - static_cast<size_t>(r.drafts - row.drafts));
    r.drafts = row.drafts;
    rows_.push_back({.request = &r, .tokens = row.tokens, .drafts = row.drafts, .prefill = row.prefill});
    if (row.prefill && config_.prefix_snapshots > 0) reserve_snapshots(r, row);
  }
  // Drafts of requests that have no row this step are void.
  for (Request* r : live_) {
    if (r->drafts == 0 || std::any_of(rows_.begin(), rows_.end(), [&](const BatchRow& b) { return b.request == r; }))
      continue;
    r->output.resize(r->output.size() - static_cast<size_t>(r->drafts));
    r->drafts = 0;
  }
}

void Engine::reserve_snapshots(Request& r, const PlanRow& row) {
  wanted_.assign(1, r.reuse.matched);
  for (const int i : step_plan_.waiting)
    if (const Request& w = *live_[static_cast<size_t>(i)]; w.leader == r.id) wanted_.push_back(w.awaited);
  prefixes_->boundaries(static_cast<int64_t>(r.prompt.size()), wanted_, r.computed, r.computed + row.tokens,
                        &boundaries_);
  const size_t first = row_snapshots_.size();
  for (const int64_t b : boundaries_) {
    const int32_t slot = prefixes_->reserve();
    if (slot < 0) break;
    row_snapshots_.push_back({.position = static_cast<int32_t>(b - r.computed), .slot = slot});
    r.snapshots.push_back({.tokens = b, .slot = slot});
  }
  rows_.back().snapshots = std::span(row_snapshots_).subspan(first);
}

void Engine::run_step() {
  const auto give_up = [this](const char* what) {
    // The other ranks are in the middle of the same step.
    if (config_.comm != nullptr) config_.comm->fail(what);
    for (const BatchRow& row : rows_) fail_request(*row.request, what);
    // What was enqueued before still runs, and reads this batch.
    if (queue_) drain();
  };
  try {
    const Bucket* bucket = choose_bucket(config_.buckets, rows_);
    const Batch& b = builder_->build(rows_, config_.all_logits, bucket);
    logit_rows_ = static_cast<int64_t>(builder_->logit_owner().size());
    note([this] { return builder_->explain(); });
    forward(b, bucket);
    if (!config_.all_logits) sample_rows();
    if (queue_) queue_->finish();  // the one time that a step waits
    if (queue_ && !sample_rows_.empty()) sampler_->collect(std::span(results_).first(sample_rows_.size()));
  } catch (const std::bad_alloc&) {
    return give_up(kNoMemory);
  } catch (const std::exception& e) {
    return give_up(e.what());
  }
  commit();
}

// A bucket that was captured is one launch, or one a piece; whoever watches sees every op of it only when they run one
// by one.
void Engine::forward(const Batch& b, const Bucket* bucket) {
  const auto captured = bucket == nullptr ? 0 : static_cast<size_t>(bucket - config_.buckets.data()) + 1;
  if (captured > 0 && captured <= recordings_.size() && !watched_)
    return run_recorded(b, *bucket, recordings_[captured - 1]);
  model_.forward(exec_, b, pool_->views(), config_.activation,
                 logits_.view<float>({b.logit_row.dim(0), model_.config().vocab_size}));
  exec_.expect_joined();
}

void Engine::run_recorded(const Batch& b, const Bucket& bucket, Recording& recording) {
  const View<float> logits = logits_.view<float>({b.logit_row.dim(0), model_.config().vocab_size});
  const auto states = pool_->views();
  if (bucket.mixed()) {
    model_.forward_in_pieces(exec_, b, states, config_.activation, logits, broken_, recording);
    return exec_.expect_joined();
  }
  const auto whole = [&] { model_.forward(exec_, b, states, config_.activation, logits); };
  recording.run(exec_, 0, std::ref(whole));
}

// Behind a step that failed. A device that is broken says so again when the next step begins to use it.
void Engine::drain() {
  if (exec_.aux != nullptr) exec_.aux->open = false;
  try {
    queue_->finish();
  } catch (const Error&) {
    return;
  }
}

void Engine::idle(const Bucket& bucket) {
  const auto& known = config_.buckets;
  const auto found = std::find_if(known.begin(), known.end(), [&](const Bucket& b) {
    return b.rows == bucket.rows && b.row_tokens == bucket.row_tokens;
  });
  if (found == known.end())
    fail(ErrorCode::invalid_argument, "bucket: ", bucket.rows, " rows of ", bucket.row_tokens,
         " tokens, expected one of the configuration's");
  try {
    const Batch& b = builder_->build({}, config_.all_logits, &*found);
    logit_rows_ = 0;
    forward(b, &*found);
    if (queue_) queue_->finish();
  } catch (const std::exception& e) {
    if (config_.comm != nullptr) config_.comm->fail(e.what());
    throw;
  }
}

// The sampler sees before each draft what plain decoding would have seen there, draw number included: the token it
// picks is the token that would have come without drafts.
void Engine::sample_rows() {
  sample_rows_.clear();
  const auto owners = builder_->logit_owner();
  for (size_t m = 0; m < owners.size(); ++m) {
    Request& r = *rows_[static_cast<size_t>(owners[m])].request;
    const bool same = m > 0 && owners[m - 1] == owners[m];
    const size_t before = same ? sample_rows_.back().output.size() + 1 : static_cast<size_t>(r.generated());
    const bool may_stop = static_cast<int64_t>(before) >= r.options.min_tokens;
    sample_rows_.push_back(
        {.params = r.options.sampling,
         .bias = r.options.bias,
         .banned = may_stop ? std::span<const int32_t>() : std::span<const int32_t>(r.options.stop_ids),
         .prompt = r.prompt,
         .output = std::span(r.output).first(before),
         .top_logprobs = r.options.top_logprobs});
    next_[m] = TokenConstraint::Next::some;
    if (r.options.constraint) constrain(m, r, sample_rows_.back());
  }
  const View<const float> logits = logits_.view<float>({logit_rows_, model_.config().vocab_size});
  if (queue_) {
    if (!sample_rows_.empty()) sampler_->enqueue(logits, sample_rows_);
    return;
  }
  sample(exec_, {.logits = logits, .rows = sample_rows_, .results = std::span(results_).first(sample_rows_.size())});
}

// On a device this runs while the device computes the logits. A row that has no token to draw is drawn all the same,
// and commit_row() looks at what its constraint said instead.
void Engine::constrain(size_t m, Request& r, SampleRow& row) {
  const auto words = static_cast<size_t>(mask_words(model_.config().vocab_size));
  const std::span<uint32_t> bits = std::span(masks_).subspan(m * words, words);
  try {
    next_[m] = r.options.constraint->allow(row.output, bits);
  } catch (const std::bad_alloc&) {
    next_[m] = TokenConstraint::Next::none;
    set_error(r, kNoMemory);
  } catch (const std::exception& e) {
    next_[m] = TokenConstraint::Next::none;
    set_error(r, e.what());
  }
  if (next_[m] == TokenConstraint::Next::some) row.allowed = bits;
}

void Engine::commit() {
  ++stats_.steps;
  const auto owners = builder_->logit_owner();
  size_t m = 0;
  for (size_t n = 0; n < rows_.size(); ++n) {
    const size_t first = m;
    while (m < owners.size() && owners[m] == static_cast<int>(n)) ++m;
    commit_row(rows_[n], std::span(results_).subspan(first, m - first), std::span(next_).subspan(first, m - first));
  }
}

// `results`: of the last certain token and of each draft; none when tokens of the request are left to compute.
void Engine::commit_row(const BatchRow& row, std::span<const SampleResult> results,
                        std::span<const TokenConstraint::Next> next) {
  Request& r = *row.request;
  const int64_t certain = row.tokens - row.drafts;
  (row.prefill ? stats_.prefill_tokens : stats_.decode_tokens) += row.tokens;
  stats_.drafts += row.drafts;
  if (!row.prefill && r.known() - r.computed > 1) stats_.replayed_tokens += certain;
  r.computed += certain;
  r.accepted = row.prefill ? 1 : static_cast<int32_t>(certain);
  if (row.prefill && is_awaited(r)) publish(r);
  if (config_.all_logits) {
    if (r.computed < r.known()) return;
    end(r, FinishReason::length);
    events_.push_back({{.id = r.id, .finish = FinishReason::length}, &r});
    return;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (end_constrained(r, next[i])) break;
    // The next draft is the next token of output already; it stays there if it is what was sampled.
    const bool kept = r.drafts > 0 && r.output[static_cast<size_t>(r.generated())] == results[i].token;
    if (!take_token(r, results[i]) || !kept) break;
    ++stats_.accepted_drafts;
    ++r.computed;
    ++r.accepted;
  }
}

// True when its constraint leaves the request no token, and it has ended.
bool Engine::end_constrained(Request& r, TokenConstraint::Next next) {
  if (next == TokenConstraint::Next::some) return false;
  if (next == TokenConstraint::Next::none) {
    std::string why;
    why.swap(r.error);
    fail_request(r, why.empty() ? "no token can follow under the request's constraint" : why.c_str());
    return true;
  }
  end(r, FinishReason::stop);
  events_.push_back({{.id = r.id, .finish = FinishReason::stop}, &r});
  return true;
}

// False when the request has ended.
bool Engine::take_token(Request& r, const SampleResult& s) {
  if (s.token < 0) {
    // What is barred as an end is often all that a constraint has left.
    std::string why = r.options.constraint ? "no usable logit among the tokens that its constraint allows"
                                           : "no usable logit: the model produced NaN or infinity";
    if (const int64_t least = r.options.min_tokens; r.options.constraint && std::ssize(r.output) < least)
      why += str("; min_tokens: ", least, " allows no end behind ", std::ssize(r.output));
    fail_request(r, why.c_str());
    return false;
  }
  publish(r);
  if (r.drafts > 0 && r.output[static_cast<size_t>(r.generated())] == s.token) {
    --r.drafts;
  } else {
    r.output.resize(static_cast<size_t>(r.generated()));
    r.drafts = 0;
    r.output.push_back(s.token);
  }
  const auto& stops = r.options.stop_ids;
  FinishReason reason = FinishReason::none;
  if (std::find(stops.begin(), stops.end(), s.token) != stops.end())
    reason = FinishReason::stop;
  else if (r.generated() >= r.options.max_tokens)
    reason = FinishReason::length;
  events_.push_back({{.id = r.id, .token = s.token, .sample = &s, .finish = reason}, &r});
  if (reason == FinishReason::none) return true;
  end(r, reason);
  return false;
}

// True when somebody waits for a state that it has computed. The step that did is over and well, so that state is what
// whoever waits would come to; what nobody waits for is published when the whole prefill has given a usable token.
bool Engine::is_awaited(const Request& r) const {
  return std::ranges::any_of(step_plan_.waiting, [&](int i) {
    const Request& w = *live_[static_cast<size_t>(i)];
    return w.leader == r.id && w.awaited <= r.computed;
  });
}

// Others may start behind what its prefill wrote.
void Engine::publish(Request& r) {
  if (r.snapshots.empty()) return;
  r.shared_pages = std::max(r.shared_pages, r.snapshots.back().tokens / config_.page_tokens);
  prefixes_->publish(r.prompt, r.pages, r.snapshots);
  r.snapshots.clear();
}

}  // namespace kdelta::runtime
