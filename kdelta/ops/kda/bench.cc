#include <cmath>

#include "bench/support/bench.h"
#include "kdelta/ops/kda/variants.h"

namespace kdelta {
namespace {

constexpr int64_t K = 128, V = 128;

// T tokens of N equal sequences over a pool of `slots`; each call takes the next N slots, so a large pool never sits in
// a cache.
struct Call {
  Buffer q, k, v, gate, beta, a_log, dt_bias, pool, out, cu, slot, accepted, fresh;
  KdaArgs args;
  int64_t slots, next = 0;

  Call(int64_t H, int64_t T, int64_t N, bool prefill, DType state, int64_t slot_count);
  KdaArgs& advance();
};

KdaArgs shape_of(int64_t H, int64_t T, int64_t N, bool prefill, DType state, int64_t slots) {
  const auto bf = [](std::initializer_list<int64_t> s) { return AnyConstView(nullptr, DType::bf16, Shape(s)); };
  KdaArgs a{.q = bf({T, H, K}), .k = bf({T, H, K}), .v = bf({T, H, V}), .gate = bf({T, H, K}), .beta = bf({T, H})};
  a.scale = 1.0f / std::sqrt(static_cast<float>(K));
  (prefill ? a.seq.n_prefill : a.seq.n_decode) = static_cast<int>(N);
  a.state = AnyView(nullptr, state, {slots, H, V, K});
  a.out = AnyView(nullptr, DType::bf16, {T, H, V});
  return a;
}

Call::Call(int64_t H, int64_t T, int64_t N, bool prefill, DType state, int64_t slot_count)
    : q({}, T * H * K * 2),
      k({}, T * H * K * 2),
      v({}, T * H * V * 2),
      gate({}, T * H * K * 2),
      beta({}, T * H * 2),
      a_log({}, H * 4),
      dt_bias({}, H * K * 4),
      pool({}, slot_count * H * V * K * dtype_bytes(state)),
      out({}, T * H * V * 2),
      cu({}, (N + 1) * 4),
      slot({}, N * 4),
      accepted({}, N * 4),
      fresh({}, N),
      args(shape_of(H, T, N, prefill, state, slot_count)),
      slots(slot_count) {
  for (Buffer* b : {&q, &k, &v, &gate, &beta, &pool}) bench::fill(b->data(), b->bytes());
  for (int64_t i = 0; i < H; ++i) static_cast<float*>(a_log.data())[i] = 0;
  for (int64_t i = 0; i < H * K; ++i) static_cast<float*>(dt_bias.data())[i] = -2;
  for (int64_t i = 0; i <= N; ++i) static_cast<int32_t*>(cu.data())[i] = static_cast<int32_t>(i * T / N);
  for (int64_t i = 0; i < N; ++i)
    static_cast<int32_t*>(accepted.data())[i] = 1, static_cast<uint8_t*>(fresh.data())[i] = prefill;
  args.q.data = q.data(), args.k.data = k.data(), args.v.data = v.data(), args.gate.data = gate.data(),
  args.beta.data = beta.data();
  args.a_log = a_log.view<float>({H}), args.dt_bias = dt_bias.view<float>({H, K});
  args.state.data = pool.data(), args.out.data = out.data();
  args.seq.cu = cu.view<int32_t>({N + 1}), args.seq.slot = slot.view<int32_t>({N, 1});
  args.seq.accepted = accepted.view<int32_t>({N}), args.seq.fresh = fresh.view<uint8_t>({N}), args.seq.max_len = T;
}

KdaArgs& Call::advance() {
  const int64_t N = args.seq.count();
  for (int64_t i = 0; i < N; ++i)
    static_cast<int32_t*>(slot.data())[i] = static_cast<int32_t>(1 + (next++ % (slots - 1)));
  return args;
}

void add_case(const std::string& variant, int64_t H, int64_t T, int64_t N, bool prefill, DType state, int64_t slots,
              bench::Roof roof) {
  KdaArgs shape = shape_of(H, T, N, prefill, state, slots);
  const std::string name =
      str(prefill ? "prefill" : "decode", " H=", H, " T=", T, " N=", N, " state ", dtype_name(state));
  bench::add({.op = "kda", .variant = variant, .shape = name, .cost = kda_cost(shape), .roof = roof, .make = [=] {
                auto call = std::make_shared<Call>(H, T, N, prefill, state, slots);
                return [=] { kda(bench::exec_with("kda", variant), call->advance()); };
              }});
}

KDELTA_BENCH(kda) {
  for (const std::string& variant : bench::fast_variants(kda_variants())) {
    // The share of the fp32 rate that the recurrence's own products reach; a chunk form can pass 100 %.
    for (int64_t T : {64, 256, 1024, 4096})
      add_case(variant, 32, T, 1, true, DType::f32, 3, {bench::RoofKind::fma_f32});
    for (int64_t N : {1, 8, 64}) {
      add_case(variant, 32, N, N, false, DType::f32, 521, {bench::RoofKind::update, int64_t{1} << 30});
      add_case(variant, 32, N, N, false, DType::bf16, 1041, {bench::RoofKind::update, int64_t{1} << 30});
    }
  }
}

}  // namespace
}  // namespace kdelta
