// A verification step in both ways of keeping drafts: one state per token, or one state and a record per draft.
#include <cmath>

#include "bench/support/bench.h"
#include "kdelta/ops/kda/variants.h"

namespace kdelta {
namespace {

constexpr int64_t K = 128, V = 128, kPoolBytes = int64_t{1} << 29;

struct Sizes {
  int64_t H, N, drafts;
  DType state;
  bool records;
  int64_t columns() const { return 1 + drafts; }
  int64_t tokens() const { return N * columns(); }
  double state_bytes() const { return static_cast<double>(H * V * K * dtype_bytes(state)); }
  double record_bytes() const { return static_cast<double>(H * (2 * K + V) * 4); }
  // What a sequence holds, and what one step moves: the state is read once; records are read and written.
  double held() const {
    return records ? state_bytes() + drafts_d() * record_bytes() : (1 + drafts_d()) * state_bytes();
  }
  Cost cost() const {
    const double moved =
        records ? 2 * state_bytes() + 2 * drafts_d() * record_bytes() : (2 + drafts_d()) * state_bytes();
    const double inputs = static_cast<double>(H) * ((3 * K + 2 * V) * 2 + 2);
    return {.bytes = static_cast<double>(N) * moved + static_cast<double>(tokens()) * inputs,
            .flops = 7.0 * static_cast<double>(tokens() * H * K * V)};
  }
  double drafts_d() const { return static_cast<double>(drafts); }
};

// Every call verifies the drafts of the next N sequences of a pool that no cache holds; the step before kept all of
// theirs, which is the most that there can be to replay.
class Call {
 public:
  explicit Call(const Sizes& s)
      : s_(s),
        held_(std::max<int64_t>(kPoolBytes / static_cast<int64_t>(s.held()), s.N)),
        slots_(1 + held_ * (s.records ? 1 : s.columns())),
        pool_({}, slots_ * static_cast<int64_t>(s.state_bytes())),
        records_({}, s.records ? slots_ * s.drafts * static_cast<int64_t>(s.record_bytes()) : 64),
        inputs_({}, s.tokens() * s.H * (4 * K + V + 1) * 2),
        floats_({}, s.H * (K + 1) * 4),
        out_({}, s.tokens() * s.H * V * 2),
        cu_({}, (s.N + 1) * 4),
        slot_({}, s.N * s.columns() * 4),
        accepted_({}, s.N * 4),
        fresh_(Buffer::zeros({}, s.N)) {
    for (Buffer* b : {&pool_, &records_, &inputs_}) bench::fill(b->data(), b->bytes());
    auto* f = static_cast<float*>(floats_.data());
    for (int64_t i = 0; i < s.H * (K + 1); ++i) f[i] = i < s.H ? 0.0f : -2.0f;
    for (int64_t n = 0; n <= s.N; ++n) static_cast<int32_t*>(cu_.data())[n] = static_cast<int32_t>(n * s.columns());
    for (int64_t n = 0; n < s.N; ++n) static_cast<int32_t*>(accepted_.data())[n] = static_cast<int32_t>(s.columns());
    const int64_t T = s.tokens(), H = s.H;
    auto* p = static_cast<bf16*>(inputs_.data());
    const auto take = [&](const Shape& shape) {
      const AnyConstView v(p, DType::bf16, shape);
      p += shape.numel();
      return v;
    };
    args_.q = take({T, H, K}), args_.k = take({T, H, K}), args_.v = take({T, H, V}), args_.gate = take({T, H, K}),
    args_.beta = take({T, H});
    args_.a_log = {f, {H}}, args_.dt_bias = {f + H, {H, K}};
    args_.scale = 1.0f / std::sqrt(static_cast<float>(K));
    args_.seq = {.cu = cu_.view<int32_t>({s.N + 1}),
                 .slot = slot_.view<int32_t>({s.N, s.columns()}),
                 .accepted = accepted_.view<int32_t>({s.N}),
                 .fresh = fresh_.view<uint8_t>({s.N}),
                 .n_decode = static_cast<int>(s.N),
                 .max_len = s.columns()};
    args_.state = AnyView(pool_.data(), s.state, {slots_, H, V, K});
    if (s.records) args_.records = records_.view<float>({slots_, s.drafts, H, 2 * K + V});
    args_.out = AnyView(out_.data(), DType::bf16, {T, H, V});
  }

  const KdaArgs& next() {
    const int64_t per_sequence = s_.records ? 1 : s_.columns();
    auto* slot = static_cast<int32_t*>(slot_.data());
    for (int64_t n = 0; n < s_.N; ++n, sequence_ = (sequence_ + 1) % held_)
      for (int64_t c = 0; c < s_.columns(); ++c)
        slot[n * s_.columns() + c] = c < per_sequence ? static_cast<int32_t>(1 + sequence_ * per_sequence + c) : -1;
    return args_;
  }

 private:
  Sizes s_;
  int64_t held_, slots_, sequence_ = 0;
  Buffer pool_, records_, inputs_, floats_, out_, cu_, slot_, accepted_, fresh_;
  KdaArgs args_;
};

KDELTA_BENCH(kda_verify) {
  const std::string variant = bench::fast_variants(kda_variants()).front();
  for (const int64_t H : {12, 32})
    for (const DType state : {DType::f32, DType::bf16})
      for (const int64_t N : {1, 8})
        for (const int64_t drafts : {1, 2, 4, 8, 16})
          for (const bool records : {false, true}) {
            const Sizes s{H, N, drafts, state, records};
            bench::add({.op = "kda_verify",
                        .variant = records ? "records" : "slots",
                        .shape = str("H=", H, " N=", N, " drafts=", drafts, " state ", dtype_name(state), " holds ",
                                     static_cast<int64_t>(s.held() / 1024), " KB"),
                        .cost = s.cost(),
                        .roof = {bench::RoofKind::update, int64_t{1} << 30},
                        .make = [=] {
                          auto call = std::make_shared<Call>(s);
                          return [=] { kda(bench::exec_with("kda", variant), call->next()); };
                        }});
          }
}

}  // namespace
}  // namespace kdelta
