// A call of kda with all its memory, and an fp64 oracle of its own: the matrix form S <- (I - b k k^T) diag(a) S + b k
// v^T on S [K, V], the papers' layout, so that it shares neither code nor index order with the op.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "kdelta/ops/kda/variants.h"
#include "tests/support/op_test.h"

namespace kdelta::test {

struct Row {
  int64_t len = 0;
  std::vector<int32_t> slots = {};  // empty: the next free slot
  int32_t accepted = 1;
  uint8_t fresh = 0;
};

struct Sizes {
  int64_t H = 2, K = 32, V = 32;
  int64_t tail = 3;   // rows of T that belong to nobody
  int64_t slots = 0;  // 0: as many as the rows need, and two more
  int64_t columns = 1;
};

using State = std::vector<double>;  // [H, K, V]

template <class In = bf16, class S = float>
class Problem {
 public:
  Sizes z;
  std::vector<Row> rows;  // prefill rows first
  int64_t n_prefill, T;
  Guarded<In> q, k, v, gate, beta, out;
  Guarded<float> a_log, dt_bias;
  Guarded<S> state;
  Guarded<int32_t> cu, slot, accepted;
  Guarded<uint8_t> fresh;
  std::optional<Guarded<int32_t>> snapshot;
  std::optional<Guarded<float>> records;
  KdaGate gate_kind = KdaGate::bounded;
  KdaBeta beta_kind = KdaBeta::raw;
  KdaNorm norm_kind = KdaNorm::l2;
  float lower_bound = -5.0f;

  Problem(const Sizes& sizes, std::vector<Row> prefill, std::vector<Row> decode = {}, uint64_t seed = 1)
      : z(complete(sizes, prefill, decode)),
        rows(join(prefill, decode, z.columns)),
        n_prefill(static_cast<int64_t>(prefill.size())),
        T(total(rows) + z.tail),
        q({T, z.H, z.K}),
        k({T, z.H, z.K}),
        v({T, z.H, z.V}),
        gate({T, z.H, z.K}),
        beta({T, z.H}),
        out({T, z.H, z.V}),
        a_log({z.H}),
        dt_bias({z.H, z.K}),
        state({z.slots, z.H, z.V, z.K}),
        cu({n() + 1}),
        slot({n(), z.columns}),
        accepted({n()}),
        fresh({n()}) {
    Rng rng(seed);
    fill_normal(q, rng);
    fill_normal(k, rng);
    fill_normal(v, rng);
    fill_normal(gate, rng, 2.0f, -1.0f);
    fill_normal(beta, rng);
    fill_uniform(a_log, rng, -0.5f, 0.5f);
    fill_normal(dt_bias, rng, 0.3f);
    fill_normal(state, rng, 0.3f);
    lay_out();
    for (int64_t i = covered(); i < T; ++i) poison_token(i);
    for (int64_t i = 0; i < z.H * z.K * z.V; ++i) state[i] = from_float<S>(NAN);  // slot 0 is nobody's
  }

  int64_t n() const { return static_cast<int64_t>(rows.size()); }
  int64_t covered() const { return total(rows); }
  int64_t begin(int64_t r) const { return cu[r]; }
  static int64_t total(const std::vector<Row>& r) {
    int64_t sum = 0;
    for (const Row& x : r) sum += x.len;
    return sum;
  }
  void poison_token(int64_t t) {
    const In bad = from_float<In>(NAN);
    for (int64_t i = 0; i < z.H * z.K; ++i) q[t * z.H * z.K + i] = k[t * z.H * z.K + i] = gate[t * z.H * z.K + i] = bad;
    for (int64_t i = 0; i < z.H * z.V; ++i) v[t * z.H * z.V + i] = bad;
    for (int64_t i = 0; i < z.H; ++i) beta[t * z.H + i] = bad;
  }
  // Copies the tokens [from, from + count) of another problem of the same H, K, V to [to, ...).
  void copy_tokens(const Problem& other, int64_t from, int64_t to, int64_t count) {
    auto copy = [&](Guarded<In>& dst, const Guarded<In>& src, int64_t width) {
      std::memcpy(dst.data() + to * width, src.data() + from * width, static_cast<size_t>(count * width) * sizeof(In));
    };
    copy(q, other.q, z.H * z.K);
    copy(k, other.k, z.H * z.K);
    copy(v, other.v, z.H * z.V);
    copy(gate, other.gate, z.H * z.K);
    copy(beta, other.beta, z.H);
    std::memcpy(a_log.data(), other.a_log.data(), static_cast<size_t>(z.H) * sizeof(float));
    std::memcpy(dt_bias.data(), other.dt_bias.data(), static_cast<size_t>(z.H * z.K) * sizeof(float));
    gate_kind = other.gate_kind, beta_kind = other.beta_kind, norm_kind = other.norm_kind,
    lower_bound = other.lower_bound;
  }
  void copy_slot(const Problem& other, int64_t from, int64_t to) {
    std::memcpy(slot_data(to), other.slot_data(from), slot_bytes());
  }

  KdaArgs args() {
    KdaArgs a{.q = q.view(),
              .k = k.view(),
              .v = v.view(),
              .gate = gate.view(),
              .beta = beta.view(),
              .a_log = a_log,
              .dt_bias = dt_bias,
              .gate_kind = gate_kind,
              .lower_bound = lower_bound,
              .beta_kind = beta_kind,
              .norm_kind = norm_kind,
              .scale = scale()};
    a.seq = {.cu = cu,
             .slot = slot,
             .accepted = accepted,
             .fresh = fresh,
             .n_prefill = static_cast<int>(n_prefill),
             .n_decode = static_cast<int>(n() - n_prefill),
             .max_len = T};
    if (snapshot) a.seq.snapshot = *snapshot;
    if (records) a.records = *records;
    a.state = state.view();
    a.out = out.view();
    return a;
  }
  void run(TestExec& ex) {
    kda(ex, args());
    EXPECT_TRUE(out.guards_intact());
    EXPECT_TRUE(state.guards_intact());
    EXPECT_TRUE(!records || records->guards_intact());
  }
  // From now on drafts leave records; all of them hold NaN.
  void keep_records() {
    records.emplace(Shape{z.slots, z.columns - 1, z.H, 2 * z.K + z.V});
    for (int64_t i = 0; i < records->size(); ++i) (*records)[i] = NAN;
  }
  float* record(int64_t s, int64_t j) { return records->data() + (s * (z.columns - 1) + j) * record_floats(); }
  int64_t record_floats() const { return z.H * (2 * z.K + z.V); }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(z.K)); }

  size_t slot_bytes() const { return static_cast<size_t>(z.H * z.V * z.K) * sizeof(S); }
  S* slot_data(int64_t s) { return state.data() + s * z.H * z.V * z.K; }
  const S* slot_data(int64_t s) const { return state.data() + s * z.H * z.V * z.K; }
  const In* out_row(int64_t t) const { return out.data() + t * z.H * z.V; }
  size_t out_bytes(int64_t tokens) const { return static_cast<size_t>(tokens * z.H * z.V) * sizeof(In); }

  // A slot as the oracle holds it, and the outputs of a token range.
  State state_of(int64_t s) const {
    State r(static_cast<size_t>(z.H * z.K * z.V));
    for (int64_t h = 0; h < z.H; ++h)
      for (int64_t e = 0; e < z.V; ++e)
        for (int64_t d = 0; d < z.K; ++d)
          r[static_cast<size_t>((h * z.K + d) * z.V + e)] = to_float(slot_data(s)[(h * z.V + e) * z.K + d]);
    return r;
  }
  std::vector<double> outputs(int64_t t, int64_t count) const {
    std::vector<double> r;
    for (int64_t i = 0; i < count * z.H * z.V; ++i) r.push_back(to_float(out_row(t)[i]));
    return r;
  }

  // The oracle: tokens [t, t + count) from s, which becomes the state after them; returns the outputs [count, H, V].
  std::vector<double> oracle(State& s, int64_t t, int64_t count) const {
    std::vector<double> o(static_cast<size_t>(count * z.H * z.V));
    for (int64_t h = 0; h < z.H; ++h)
      for (int64_t i = 0; i < count; ++i)
        oracle_token(&s[static_cast<size_t>(h * z.K * z.V)], t + i, h, &o[static_cast<size_t>((i * z.H + h) * z.V)]);
    return o;
  }
  State zero_state() const { return State(static_cast<size_t>(z.H * z.K * z.V)); }
  double log_decay(int64_t t, int64_t h, int64_t d) const {
    const double A = std::exp(static_cast<double>(a_log[h]));
    const double x =
        static_cast<double>(to_float(gate[(t * z.H + h) * z.K + d])) + static_cast<double>(dt_bias[h * z.K + d]);
    if (gate_kind == KdaGate::bounded) return lower_bound / (1 + std::exp(-A * x));
    return x > 30 ? -A * x : -A * std::log1p(std::exp(x));
  }

 private:
  static Sizes complete(Sizes s, const std::vector<Row>& a, const std::vector<Row>& b) {
    if (s.slots == 0) s.slots = static_cast<int64_t>(a.size() + b.size()) * s.columns + 3;
    return s;
  }
  static std::vector<Row> join(std::vector<Row> a, const std::vector<Row>& b, int64_t columns) {
    a.insert(a.end(), b.begin(), b.end());
    int32_t next = 1;
    for (Row& r : a) {
      const bool chosen = !r.slots.empty();
      r.slots.resize(static_cast<size_t>(columns), -1);
      for (int32_t& s : r.slots)
        if (!chosen) s = next++;
    }
    return a;
  }
  void lay_out() {
    cu[0] = 0;
    for (int64_t r = 0; r < n(); ++r) {
      const Row& x = rows[static_cast<size_t>(r)];
      cu[r + 1] = cu[r] + static_cast<int32_t>(x.len);
      for (int64_t c = 0; c < z.columns; ++c) slot[r * z.columns + c] = x.slots[static_cast<size_t>(c)];
      accepted[r] = x.accepted;
      fresh[r] = x.fresh;
    }
  }
  std::vector<double> key(const Guarded<In>& x, int64_t t, int64_t h) const {
    std::vector<double> r(static_cast<size_t>(z.K));
    double sum = 0;
    for (int64_t d = 0; d < z.K; ++d) {
      r[static_cast<size_t>(d)] = to_float(x[(t * z.H + h) * z.K + d]);
      sum += r[static_cast<size_t>(d)] * r[static_cast<size_t>(d)];
    }
    for (double& e : r) e /= norm_kind == KdaNorm::l2 ? std::sqrt(sum + 1e-6) : 1;
    return r;
  }
  void oracle_token(double* s, int64_t t, int64_t h, double* o) const {
    const std::vector<double> qn = key(q, t, h), kn = key(k, t, h);
    const double raw = to_float(beta[t * z.H + h]), b = beta_kind == KdaBeta::raw ? 1 / (1 + std::exp(-raw)) : raw;
    std::vector<double> read(static_cast<size_t>(z.V));
    for (int64_t d = 0; d < z.K; ++d) {
      const double a = std::exp(log_decay(t, h, d));
      for (int64_t e = 0; e < z.V; ++e)
        read[static_cast<size_t>(e)] += kn[static_cast<size_t>(d)] * (s[d * z.V + e] *= a);
    }
    for (int64_t e = 0; e < z.V; ++e) o[e] = 0;
    for (int64_t d = 0; d < z.K; ++d)
      for (int64_t e = 0; e < z.V; ++e) {
        const double value = to_float(v[(t * z.H + h) * z.V + e]);
        s[d * z.V + e] += b * kn[static_cast<size_t>(d)] * (value - read[static_cast<size_t>(e)]);
        o[e] += static_cast<double>(scale()) * qn[static_cast<size_t>(d)] * s[d * z.V + e];
      }
  }
};

// Address space of which only the touched pages exist.
class SparseMemory {
 public:
  explicit SparseMemory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) fail(ErrorCode::out_of_memory, "no address space for ", bytes, " bytes");
  }
  ~SparseMemory() { munmap(data_, bytes_); }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  char* data() const { return static_cast<char*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

// What a variant may lose against the oracle, by design.md 4: the recurrences only round, chunk forms have the precise
// bars, those on plain bf16 operands the bars of every variant.
inline bool is_chunk(const std::string& variant) {
  return variant.starts_with("chunk");
}
inline bool is_cheap(const std::string& variant) {
  return is_chunk(variant) && variant.ends_with("_bf16");
}
inline bool takes_f32(const std::string& variant) {
  return !is_chunk(variant);
}
inline double out_bound(const std::string& v) {
  return is_cheap(v) ? 4.4e-3 : is_chunk(v) ? 3.5e-3 : 1.8e-3;
}
inline double state_bound(const std::string& v) {
  return is_cheap(v) ? 3.2e-3 : is_chunk(v) ? 1e-3 : 1e-6;
}

}  // namespace kdelta::test
