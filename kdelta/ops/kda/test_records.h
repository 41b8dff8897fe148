// What verification with records promises, as tests of any device: a Runner has run(problem), which calls kda on it,
// and replay(problem, slot, accepted), which calls kda_replay on its state and records.
#pragma once

#include <random>

#include "kdelta/ops/kda/test_problem.h"

namespace kdelta::test {

// One sequence that runs step by step: state and records stay, each step brings its tokens.
template <class S>
class Sequence {
 public:
  Sequence(const Sizes& sizes, bool records) : z_(sizes), keeps_(records), last_(problem({Row{.len = 0}})) {}
  void start(const float* state) {
    for (int64_t i = 0; i < z_.H * z_.V * z_.K; ++i) last_.slot_data(1)[i] = from_float<S>(state[i]);
  }
  // `len` tokens of `source` from `from` on, as a decode row or a prefill that follows a step that kept `accepted`.
  template <class Runner>
  const Problem<bf16, S>& step(Runner& on, const Problem<>& source, int64_t from, int64_t len, int32_t accepted,
                               bool prefill = false) {
    Problem<bf16, S> p = problem({Row{.len = len, .accepted = accepted}}, prefill);
    std::memcpy(p.q.data(), source.q.data() + from * z_.H * z_.K, static_cast<size_t>(len * z_.H * z_.K) * 2);
    std::memcpy(p.k.data(), source.k.data() + from * z_.H * z_.K, static_cast<size_t>(len * z_.H * z_.K) * 2);
    std::memcpy(p.gate.data(), source.gate.data() + from * z_.H * z_.K, static_cast<size_t>(len * z_.H * z_.K) * 2);
    std::memcpy(p.v.data(), source.v.data() + from * z_.H * z_.V, static_cast<size_t>(len * z_.H * z_.V) * 2);
    std::memcpy(p.beta.data(), source.beta.data() + from * z_.H, static_cast<size_t>(len * z_.H) * 2);
    std::memcpy(p.a_log.data(), source.a_log.data(), static_cast<size_t>(z_.H) * 4);
    std::memcpy(p.dt_bias.data(), source.dt_bias.data(), static_cast<size_t>(z_.H * z_.K) * 4);
    std::memcpy(p.state.data(), last_.state.data(), static_cast<size_t>(p.state.size()) * sizeof(S));
    if (keeps_) *p.records = *last_.records;
    on.run(p);
    last_ = std::move(p);
    return last_;
  }
  // What nobody may read again after a step that kept `accepted`.
  void poison_rejected(int32_t accepted) {
    for (int64_t j = accepted - 1; j + 1 < z_.columns; ++j)
      std::fill_n(last_.record(1, j), last_.record_floats(), std::nanf(""));
  }
  Problem<bf16, S>& last() { return last_; }

 private:
  Problem<bf16, S> problem(std::vector<Row> rows, bool prefill = false) const {
    rows[0].slots = {1};
    for (int32_t c = 1; !keeps_ && c < z_.columns; ++c) rows[0].slots.push_back(1 + c);
    Problem<bf16, S> p = prefill ? Problem<bf16, S>(z_, rows) : Problem<bf16, S>(z_, {}, rows);
    if (keeps_) p.keep_records();
    return p;
  }
  Sizes z_;
  bool keeps_;
  Problem<bf16, S> last_;
};

template <class S>
bool same_state(Problem<bf16, S>& a, Problem<bf16, S>& b) {
  return std::memcmp(a.slot_data(1), b.slot_data(1), a.slot_bytes()) == 0;
}

template <class Runner, class S>
void commit(Runner& on, Problem<bf16, S>& p, int32_t accepted) {
  Guarded<int32_t> slot({3}), kept({3});
  slot[0] = -1, slot[1] = 1, slot[2] = -1;
  kept[0] = 99, kept[1] = accepted, kept[2] = -7;
  on.replay(p, slot, kept);
}

// Verify with every number of drafts, keep every number of them: the outputs, the committed state, and the state and
// outputs of the step behind it are those of single steps. Rejected records and slots nobody owns hold NaN.
template <class S, class Runner>
void every_accepted_count(Runner& on, const Sizes& z, const std::vector<int64_t>& lengths) {
  const int64_t most = z.columns;
  const Problem<> tokens({.H = z.H, .K = z.K, .V = z.V, .tail = 0}, {Row{.len = most + 2}});
  Sequence<S> single({.H = z.H, .K = z.K, .V = z.V, .slots = 3}, false);
  single.start(tokens.state.data() + z.H * z.K * z.V);
  std::vector<Problem<bf16, S>> plain;  // after 1, 2, ... tokens
  for (int64_t i = 0; i < most + 2; ++i) plain.push_back(single.step(on, tokens, i, 1, 1));
  for (const int64_t len : lengths) {
    Sequence<S> verify(z, true);
    verify.start(tokens.state.data() + z.H * z.K * z.V);
    verify.step(on, tokens, 0, len, 1);
    for (int64_t i = 0; i < len; ++i)
      ASSERT_EQ(std::memcmp(verify.last().out_row(i), plain[static_cast<size_t>(i)].out_row(0), plain[0].out_bytes(1)),
                0)
          << "token " << i << " of " << len;
    ASSERT_TRUE(same_state(verify.last(), plain[0])) << "the slot holds the state after the certain token, " << len;
    for (int32_t accepted = 1; accepted <= len; ++accepted) {
      Sequence<S> next = verify;
      next.poison_rejected(accepted);
      Problem<bf16, S> committed = next.last();
      commit(on, committed, accepted);
      ASSERT_TRUE(same_state(committed, plain[static_cast<size_t>(accepted) - 1])) << accepted << " of " << len;
      const Problem<bf16, S>& p = next.step(on, tokens, accepted, std::min<int64_t>(2, most), accepted);
      const auto first = static_cast<size_t>(accepted);
      ASSERT_EQ(std::memcmp(p.out_row(0), plain[first].out_row(0), p.out_bytes(1)), 0) << accepted << " of " << len;
      if (most > 1) {
        ASSERT_EQ(std::memcmp(p.out_row(1), plain[first + 1].out_row(0), p.out_bytes(1)), 0);
      }
      ASSERT_TRUE(same_state(next.last(), plain[first])) << accepted << " of " << len;
    }
  }
}

// Steps of any length behind each other, with any number of drafts kept, a prefill among them.
// width: of keys and values; 0: any.
template <class S, class Runner>
void any_history(Runner& on, uint64_t seed, int64_t width = 0) {
  std::mt19937_64 rng(seed);
  const auto pick = [&](int64_t lo, int64_t hi) {
    return lo + static_cast<int64_t>(rng() % static_cast<uint64_t>(hi - lo + 1));
  };
  const int64_t columns = pick(1, 9);
  Sizes slots{.H = 2, .K = pick(1, 70), .V = pick(1, 70), .slots = columns + 2, .columns = columns};
  if (width > 0) slots.K = slots.V = width;
  Sizes records = slots;
  records.slots = 3;
  Sequence<S> a(slots, false), b(records, true);
  const Problem<> tokens({.H = 2, .K = slots.K, .V = slots.V, .tail = 0}, {Row{.len = 200}}, {}, seed);
  a.start(tokens.state.data() + 2 * slots.K * slots.V), b.start(tokens.state.data() + 2 * slots.K * slots.V);
  int32_t accepted = 1;
  for (int64_t at = 0, step = 0; at + 80 < 200 && step < 12; ++step) {
    const bool prefill = pick(0, 7) == 0;
    const int64_t len = prefill ? pick(1, 20) : pick(1, columns);
    const auto& x = a.step(on, tokens, at, len, accepted, prefill);
    b.poison_rejected(accepted);
    const auto& y = b.step(on, tokens, at, len, accepted, prefill);
    ASSERT_EQ(std::memcmp(x.out_row(0), y.out_row(0), x.out_bytes(len)), 0) << "seed " << seed << " step " << step;
    accepted = prefill ? 1 : static_cast<int32_t>(pick(1, len));
    at += prefill ? len : accepted;
    Problem<bf16, S> committed = b.last();
    commit(on, committed, accepted);
    ASSERT_EQ(std::memcmp(committed.slot_data(1), a.last().slot_data(accepted), committed.slot_bytes()), 0)
        << "seed " << seed << " step " << step;
  }
}

// Rows of a batch do not meet: fresh, prefilling, plain, verifying and padded ones, each as with slots.
template <class Runner>
void mixed_batch(Runner& on, int64_t K, int64_t V) {
  const Sizes z{.H = 2, .K = K, .V = V, .slots = 30, .columns = 4};
  const auto rows = [](bool slots) {
    const auto row = [&](int64_t len, int32_t slot, int32_t accepted, uint8_t fresh) {
      Row r{.len = len, .slots = {slot}, .accepted = accepted, .fresh = fresh};
      for (int32_t c = 1; slots && slot > 0 && c < 4; ++c) r.slots.push_back(slot * 3 + 5 + c);
      return r;
    };
    return std::pair(
        std::vector<Row>{row(20, 1, 1, 0), row(7, 2, 4, 1)},
        std::vector<Row>{row(4, 3, 4, 1), row(1, 4, 1, 0), row(0, 5, 2, 0), row(2, -1, 1, 0), row(3, 6, 1, 0)});
  };
  const auto [sp, sd] = rows(true);
  const auto [rp, rd] = rows(false);
  Problem<> slots(z, sp, sd), records(z, rp, rd);
  records.keep_records();
  std::memcpy(records.state.data(), slots.state.data(), static_cast<size_t>(slots.state.size()) * 4);
  const Problem<> before = records;
  on.run(slots);
  on.run(records);
  EXPECT_TRUE(same_bits(slots.out, records.out));
  for (const int32_t s : {1, 2, 3, 4, 5, 6})
    EXPECT_EQ(std::memcmp(slots.slot_data(s), records.slot_data(s), slots.slot_bytes()), 0) << "slot " << s;
  for (int32_t s = 0; s < 30; ++s) {
    const bool drafted = s == 3 || s == 6;
    if (s == 0 || s == 5 || s > 6) {
      EXPECT_EQ(std::memcmp(before.slot_data(s), records.slot_data(s), slots.slot_bytes()), 0) << "slot " << s;
    }
    for (int64_t j = 0; j < 3; ++j) {
      const bool written = !std::isnan(*records.record(s, j));
      EXPECT_EQ(written, drafted && j < (s == 3 ? 3 : 2)) << "record " << j << " of slot " << s;
    }
  }
}

// What the contract says of a record, against the oracle's own numbers: exp(g), the normalised key, the change.
template <class Runner>
void contents_of_records(Runner& on, int64_t K, int64_t V) {
  const Sizes z{.H = 2, .K = K, .V = V, .tail = 0, .slots = 3, .columns = 3};
  for (const KdaGate gate : {KdaGate::bounded, KdaGate::softplus}) {
    Problem<> p(z, {}, {Row{.len = 3, .slots = {1}}});
    p.gate_kind = gate;
    p.keep_records();
    State s = p.state_of(1);
    std::vector<State> after;
    for (int64_t i = 0; i < 3; ++i) {
      p.oracle(s, i, 1);
      after.push_back(s);
    }
    on.run(p);
    for (int64_t j = 0; j < 2; ++j)
      for (int64_t h = 0; h < z.H; ++h) {
        const float *decay = p.record(1, j) + h * (2 * z.K + z.V), *key = decay + z.K, *change = key + z.K;
        double norm = 0;
        for (int64_t d = 0; d < z.K; ++d) {
          norm += double{key[d]} * double{key[d]};
          ASSERT_NEAR(decay[d], std::exp(p.log_decay(j + 1, h, d)), 2e-6);
        }
        ASSERT_NEAR(norm, 1, 1e-5);
        for (int64_t d = 0; d < z.K; ++d)
          for (int64_t e = 0; e < z.V; ++e) {
            const auto at = static_cast<size_t>((h * z.K + d) * z.V + e);
            const auto i = static_cast<size_t>(j);
            ASSERT_NEAR(after[i][at] * double{decay[d]} + double{change[e]} * double{key[d]}, after[i + 1][at], 2e-5);
          }
      }
  }
}

// NaN in a draft reaches its own record and output, and what follows only when the draft is kept.
template <class Runner>
void rejected_nans(Runner& on, int64_t K, int64_t V) {
  const Sizes z{.H = 2, .K = K, .V = V, .slots = 3, .columns = 4};
  Problem<> tokens({.H = 2, .K = K, .V = V, .tail = 0}, {Row{.len = 8}});
  Sequence<float> clean(z, true);
  clean.start(tokens.state.data() + z.H * z.K * z.V);
  Sequence<float> sick = clean;
  clean.step(on, tokens, 0, 2, 1);
  Problem<> bad = tokens;
  bad.poison_token(2), bad.poison_token(3);
  sick.step(on, bad, 0, 4, 1);
  EXPECT_EQ(std::memcmp(clean.last().out_row(0), sick.last().out_row(0), clean.last().out_bytes(2)), 0);
  EXPECT_TRUE(std::isnan(*sick.last().record(1, 1)));
  clean.step(on, tokens, 2, 3, 2);
  sick.step(on, tokens, 2, 3, 2);
  EXPECT_EQ(std::memcmp(clean.last().out_row(0), sick.last().out_row(0), clean.last().out_bytes(3)), 0);
  EXPECT_TRUE(same_state(clean.last(), sick.last()));
}

}  // namespace kdelta::test
