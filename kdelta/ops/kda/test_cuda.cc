// kda on CUDA against the fp64 oracle: both schedules at every block edge, gates of every size, slots, faults, replays.
#include <functional>

#include "kdelta/ops/kda/test_cuda_problem.h"

namespace kdelta::test {
namespace {

double outputs_bound(const std::string& variant) {
  return is_portable(variant) ? 1.8e-3 : 3.5e-3;
}
double states_bound(const std::string& variant) {
  return is_portable(variant) ? 1e-6 : 1e-3;
}

class KdaCuda : public testing::Test {
 protected:
  // Every CUDA row of the device; `wide`: the case has widths other than 128 or fp32 activations.
  void for_each_row(const std::function<void(const std::string&)>& f, bool wide = false) {
    int ran = 0;
    for (const KdaVariant& row : kda_variants()) {
      if (machine_refusal(row, EffectCase::device_target()) != nullptr || (wide && !is_portable(row.name))) continue;
      SCOPED_TRACE(row.name);
      ex.force("kda", row.name);
      f(row.name);
      ++ran;
    }
    EXPECT_GE(ran, wide ? 1 : 3);
  }
  template <class In, class S>
  void run(Problem<In, S>& p, uint32_t faults = 0) {
    Uploaded<In, S> on(p, ex.stream());
    kda(ex, on.args());
    EXPECT_EQ(fault_names(ex.take_faults()), fault_names(faults));
    on.fetch();
  }
  // Runs p and holds every row against the oracle; prefill rows within the given bounds, decode rows within rounding.
  template <class In, class S>
  void agree(Problem<In, S>& p, double out, double state) {
    const Problem<In, S> before = p;
    run(p);
    for (int64_t r = 0; r < p.n(); ++r) {
      const Row& row = p.rows[static_cast<size_t>(r)];
      if (row.len == 0) continue;
      const bool decode = r >= p.n_prefill;
      State s = row.fresh ? p.zero_state() : before.state_of(row.slots[static_cast<size_t>(row.accepted - 1)]);
      if (!decode) {
        const auto o = before.oracle(s, p.begin(r), row.len);
        EXPECT_LE(relative_rmse(p.outputs(p.begin(r), row.len), o), out) << "row " << r;
        EXPECT_LE(relative_rmse(p.state_of(row.slots[0]), s), state) << "row " << r;
        continue;
      }
      for (int64_t i = 0; i < row.len; ++i) {
        const auto o = before.oracle(s, p.begin(r) + i, 1);
        if (sizeof(S) == 2)
          for (double& e : s) e = to_float(to_bf16(static_cast<float>(e)));
        EXPECT_LE(relative_rmse(p.outputs(p.begin(r) + i, 1), o), sizeof(In) == 4 ? 1e-5 : 4e-3) << "row " << r;
        EXPECT_LE(relative_rmse(p.state_of(row.slots[static_cast<size_t>(i)]), s), sizeof(S) == 2 ? 2e-3 : 1e-6)
            << "row " << r << " token " << i;
      }
    }
    for (int64_t i = p.covered() * p.z.H * p.z.V; i < p.out.size(); ++i) ASSERT_EQ(to_float(p.out[i]), 0) << i;
    for (int64_t i = 0; i < p.z.H * p.z.K * p.z.V; ++i) ASSERT_TRUE(std::isnan(to_float(p.state[i]))) << "slot 0";
  }
  CudaExec ex{int64_t{1} << 30};
};

TEST_F(KdaCuda, AgreesWithTheOracleAtEveryEdgeOfBlocksAndChunks) {
  for_each_row([&](const std::string& variant) {
    for (int64_t T : {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 79, 80, 81, 127, 128, 129, 130}) {
      SCOPED_TRACE(T);
      Problem<> p({.H = 1, .K = 128, .V = 128}, {Row{.len = T}, Row{.len = 130 - T, .fresh = 1}}, {Row{.len = 1}});
      agree(p, 2 * outputs_bound(variant), states_bound(variant));
    }
  });
}

TEST_F(KdaCuda, AgreesWithTheOracleAtWidthsAndDtypesOfTheScan) {
  for_each_row(
      [&](const std::string&) {
        for (int64_t K : {1, 16, 60, 100, 128, 200, 256})
          for (int64_t V : {1, 37, 130}) {
            SCOPED_TRACE(str("K ", K, " V ", V));
            Problem<float> p({.H = 2, .K = K, .V = V, .columns = 3}, {Row{.len = 19}, Row{.len = 5, .fresh = 1}},
                             {Row{.len = 1}, Row{.len = 3, .accepted = 2}});
            agree(p, 1e-5, 1e-5);
          }
      },
      true);
}

TEST_F(KdaCuda, LongSequencesCutIntoSegmentsAgreeWithTheOracle) {
  for_each_row([&](const std::string& variant) {
    Problem<> p({.H = 2, .K = 128, .V = 128}, {Row{.len = 1500}});
    for (int64_t i = 0; i < p.covered() * 256; ++i) p.gate[i] = to_bf16(to_float(p.gate[i]) - 5);
    agree(p, outputs_bound(variant), states_bound(variant));
  });
}

// Two to twelve segments of unequal lengths, the last of them sometimes a single chunk.
TEST_F(KdaCuda, EveryNumberOfSegmentsAgreesWithTheOracle) {
  ex.force("kda", "cuda_chunk");
  for (int64_t T : {512, 767, 1024, 1281, 1600, 1792, 2050, 2304, 2567, 2880, 3072}) {
    SCOPED_TRACE(T);
    Problem<> p({.H = 1, .K = 128, .V = 128}, {Row{.len = T}});
    for (int64_t i = 0; i < p.covered() * 128; ++i) p.gate[i] = to_bf16(to_float(p.gate[i]) - 5);
    agree(p, outputs_bound("cuda_chunk"), states_bound("cuda_chunk"));
  }
}

TEST_F(KdaCuda, RowsOfAllKindsBesideEachOtherAgreeWithTheOracle) {
  for_each_row([&](const std::string& variant) {
    Problem<> p(
        {.H = 3, .K = 128, .V = 128, .tail = 9, .columns = 5},
        {Row{.len = 130, .accepted = 3}, Row{.len = 0}, Row{.len = 7, .fresh = 1}, Row{.len = 700}, Row{.len = 64}},
        {Row{.len = 1}, Row{.len = 5, .accepted = 5}, Row{.len = 0, .fresh = 1}, Row{.len = 2, .accepted = 4}});
    agree(p, 2 * outputs_bound(variant), states_bound(variant));
    Problem<bf16, bf16> b({.H = 2, .K = 128, .V = 128, .columns = 4}, {},
                          {Row{.len = 4, .accepted = 2}, Row{.len = 1}});
    agree(b, 0, 0);
    Problem<> many({.H = 12, .K = 128, .V = 128}, {}, std::vector<Row>(40, Row{.len = 1}));
    agree(many, 0, 0);
  });
}

// The kinds of keys and gates of the error table; keys that nearly repeat within the bars of every variant.
TEST_F(KdaCuda, ErrorsStayWithinTheTable) {
  struct Family {
    const char* name;
    float same, beta, gate;  // share of a common key, gate's mean
    double out, state;
  };
  for_each_row([&](const std::string& variant) {
    for (const Family& f : {Family{"fast", 0, 0, 0, 3.5e-3, 1e-3},
                            {"slow", 0, 0, -7, 3.5e-3, 1e-3},
                            {"cosine 0.81", 0.9f, 3, -7, 7.5e-3, 6.5e-3},
                            {"cosine 0.98", 0.99f, 4.6f, -7, 1.6e-2, 1.6e-2},
                            {"equal", 1, 4.6f, -7, 2.5e-2, 4e-2}}) {
      SCOPED_TRACE(f.name);
      Problem<> p({.H = 1, .K = 128, .V = 128}, {Row{.len = 512}});
      const float rest = std::sqrt(1 - f.same * f.same);
      for (int64_t t = 0; t < 512; ++t) {
        for (int64_t d = 0; d < 128; ++d) {
          if (f.same > 0) p.k[t * 128 + d] = to_bf16(f.same * to_float(p.q[d]) + rest * to_float(p.k[t * 128 + d]));
          p.gate[t * 128 + d] = to_bf16(0.25f * to_float(p.gate[t * 128 + d]) + f.gate);
        }
        if (f.beta > 0) p.beta[t] = to_bf16(f.beta);
      }
      agree(p, is_portable(variant) ? 1.8e-3 : f.out, is_portable(variant) ? 1e-5 : f.state);
    }
  });
}

TEST_F(KdaCuda, GatesOfEverySizeAreExact) {
  for_each_row([&](const std::string& variant) {
    for (float raw : {-40.0f, -9.0f, -3.0f, 0.0f, 3.0f, 9.0f, 40.0f, 104.0f, INFINITY})
      for (KdaGate kind : {KdaGate::bounded, KdaGate::softplus}) {
        SCOPED_TRACE(str("raw gate ", raw, kind == KdaGate::bounded ? " bounded" : " softplus"));
        Problem<> p({.H = 1, .K = 128, .V = 128}, {Row{.len = 100}}, {Row{.len = 1}});
        p.gate_kind = kind;
        // One channel forgets, the rest do not; then all; token 0 keeps everything.
        for (int64_t t = 1; t < 101; ++t)
          for (int64_t d = 0; d < 128; ++d) p.gate[t * 128 + d] = to_bf16(t < 50 && d != 5 ? -9.0f : raw);
        if (std::isinf(raw) && kind == KdaGate::bounded) continue;  // the oracle's A x is then infinite too
        agree(p, 2 * outputs_bound(variant), is_portable(variant) ? 1e-5 : 2e-3);
      }
  });
}

TEST_F(KdaCuda, ValuesBeyondTheRangeOfHalfPrecisionAreRunTokenByToken) {
  for_each_row([&](const std::string& variant) {
    Problem<> p({.H = 2, .K = 128, .V = 128}, {Row{.len = 700}});
    for (int64_t t = 0; t < 700; ++t)
      for (int64_t d = 0; d < 64; ++d)
        p.v[(t * 2 + 1) * 128 + d] = to_bf16(3e5f * to_float(p.v[(t * 2 + 1) * 128 + d]));
    agree(p, outputs_bound(variant), states_bound(variant));
  });
}

TEST_F(KdaCuda, SnapshotsHoldTheStateAfterTheirToken) {
  for_each_row([&](const std::string& variant) {
    Problem<> p({.H = 2, .K = 128, .V = 128, .slots = 16}, {Row{.len = 700}, Row{.len = 70, .fresh = 1}});
    const std::vector<std::array<int32_t, 3>> want = {{0, 64, 5}, {0, 1, 6},   {0, 333, 7}, {0, 700, 8},
                                                      {1, 63, 9}, {1, 70, 10}, {0, 65, -1}};
    p.snapshot.emplace(Shape{static_cast<int64_t>(want.size()), 3});
    for (size_t i = 0; i < want.size(); ++i)
      for (size_t j = 0; j < 3; ++j) (*p.snapshot)[static_cast<int64_t>(i * 3 + j)] = want[i][j];
    const Problem<> before = p;
    run(p);
    for (const auto& x : want) {
      if (x[2] < 0) continue;
      State s = x[0] == 1 ? p.zero_state() : before.state_of(1);
      before.oracle(s, before.begin(x[0]), x[1]);
      EXPECT_LE(relative_rmse(p.state_of(x[2]), s), states_bound(variant)) << "position " << x[1];
    }
  });
}

TEST_F(KdaCuda, ARowAtFaultIsSkippedWholeAndNobodyElseIsTouched) {
  auto bit = [](Fault f) { return static_cast<uint32_t>(f); };
  for_each_row([&](const std::string&) {
    for (bool prefill : {false, true}) {
      std::vector<Row> rows(7, Row{.len = 1});
      rows[1].slots = {-1}, rows[2].slots = {40}, rows[4].slots = {1}, rows[5].accepted = 0, rows[6].slots = {5};
      rows[0].slots = {1}, rows[3].slots = {3}, rows[5].slots = {6};
      const Sizes z{.H = 2, .K = 128, .V = 128, .slots = 10};
      Problem<> p = prefill ? Problem<>(z, rows) : Problem<>(z, {}, rows);
      const Problem<> before = p;
      run(p, bit(Fault::slot) | bit(Fault::shared_slot) | bit(Fault::accepted));
      for (int64_t s = 0; s < 10; ++s)
        EXPECT_EQ(std::memcmp(p.slot_data(s), before.slot_data(s), p.slot_bytes()) == 0, s != 1 && s != 3 && s != 5)
            << s;
      for (int64_t r : {1, 2, 4, 5})
        for (int64_t i = 0; i < 256; ++i) ASSERT_EQ(to_float(p.out_row(r)[i]), 0) << r;
      for (int64_t r : {0, 3, 6}) {
        State s = before.state_of(rows[static_cast<size_t>(r)].slots[0]);
        EXPECT_LE(relative_rmse(p.outputs(r, 1), before.oracle(s, r, 1)), 5e-3) << r;
      }
    }
  });
}

TEST_F(KdaCuda, CapturedReplaysOnFreshInputsHaveTheBitsOfPlainCalls) {
  for_each_row([&](const std::string&) {
    const Sizes z{.H = 3, .K = 128, .V = 128, .columns = 2};
    auto make = [&](uint64_t seed) {
      return Problem<>(z, {Row{.len = 900}, Row{.len = 70, .fresh = 1}}, {Row{.len = 2}, Row{.len = 1}}, seed);
    };
    Problem<> live = make(1);
    Uploaded<bf16, float> on(live, ex.stream());
    ex.stream().synchronize();
    const Graph graph = Graph::capture(ex, [&] { kda(ex, on.args()); });
    for (uint64_t seed : {2, 3, 4}) {
      Problem<> plain = make(seed);
      live = plain;
      run(plain);
      on.refresh();
      graph.launch(ex.stream());
      on.fetch();
      EXPECT_EQ(std::memcmp(live.out_row(0), plain.out_row(0), live.out_bytes(live.T)), 0);
      EXPECT_EQ(std::memcmp(live.slot_data(1), plain.slot_data(1), live.slot_bytes() * 8), 0);
    }
  });
}

TEST_F(KdaCuda, TheSerialScheduleCutAtMultiplesOf64IsTheSameBitForBit) {
  auto cut = [&](auto whole) {
    using P = decltype(whole);
    P all = whole;
    run(all);
    for (int64_t at : {64, 128, 192}) {
      P first(whole.z, {Row{.len = at, .fresh = 1}}), second(whole.z, {Row{.len = 200 - at}});
      first.copy_tokens(whole, 0, 0, at), second.copy_tokens(whole, at, 0, 200 - at);
      run(first);
      second.copy_slot(first, 1, 1);
      run(second);
      EXPECT_EQ(std::memcmp(first.out_row(0), all.out_row(0), all.out_bytes(at)), 0) << at;
      EXPECT_EQ(std::memcmp(second.out_row(0), all.out_row(at), all.out_bytes(200 - at)), 0) << at;
      EXPECT_EQ(std::memcmp(second.slot_data(1), all.slot_data(1), all.slot_bytes()), 0) << at;
    }
  };
  for (const char* variant : {"cuda_chunk_serial", "cuda_portable"}) {
    SCOPED_TRACE(variant);
    ex.force("kda", variant);
    cut(Problem<>({.H = 2, .K = 128, .V = 128}, {Row{.len = 200, .fresh = 1}}));
    cut(Problem<bf16, bf16>({.H = 2, .K = 128, .V = 128}, {Row{.len = 200, .fresh = 1}}));
  }
}

TEST_F(KdaCuda, VerifyingTokensHasTheBitsOfSingleSteps) {
  for_each_row([&](const std::string&) {
    auto compare = [&](auto verify, auto step) {
      const auto tokens = verify;
      step.copy_slot(verify, 3, 1);
      run(verify);
      for (int64_t i = 0; i < 6; ++i) {
        step.copy_tokens(tokens, i, 0, 1);
        run(step);
        EXPECT_EQ(std::memcmp(step.out_row(0), verify.out_row(i), step.out_bytes(1)), 0) << i;
        EXPECT_EQ(std::memcmp(step.slot_data(1), verify.slot_data(1 + i), step.slot_bytes()), 0) << i;
      }
    };
    const Sizes z{.H = 2, .K = 128, .V = 128}, c{.H = 2, .K = 128, .V = 128, .columns = 6};
    compare(Problem<>(c, {}, {Row{.len = 6, .accepted = 3}}), Problem<>(z, {}, {Row{.len = 1}}));
    compare(Problem<bf16, bf16>(c, {}, {Row{.len = 6, .accepted = 3}}), Problem<bf16, bf16>(z, {}, {Row{.len = 1}}));
  });
}

// The row that is chosen there does not look at the tokens of the call.
TEST_F(KdaCuda, InExactModeCompanyChangesNoBit) {
  Options exact;
  exact.exact = true;
  ex.mutable_exec().options = &exact;
  const Sizes z{.H = 2, .K = 128, .V = 128};
  Problem<> alone(z, {Row{.len = 700}}), crowd(z, {Row{.len = 700}, Row{.len = 3000}, Row{.len = 65}}, {Row{.len = 1}});
  crowd.copy_tokens(alone, 0, 0, 700);
  crowd.copy_slot(alone, 1, 1);
  run(alone);
  run(crowd);
  EXPECT_EQ(std::memcmp(alone.out_row(0), crowd.out_row(0), alone.out_bytes(700)), 0);
  EXPECT_EQ(std::memcmp(alone.slot_data(1), crowd.slot_data(1), alone.slot_bytes()), 0);
}

// Views of the merged convolution output; views off the 16-byte grid are refused by the fast rows, taken by the scan.
TEST_F(KdaCuda, StridedViewsGiveTheBitsOfDenseOnes) {
  for_each_row([&](const std::string& variant) {
    Problem<> dense({.H = 2, .K = 128, .V = 128}, {Row{.len = 90}}, {Row{.len = 1}});
    Problem<> strided = dense;
    const int64_t T = dense.T;
    for (int64_t shift : {0, 1}) {
      if (shift == 1 && !is_portable(variant)) continue;
      Guarded<bf16> merged({T, 768 + 8});
      for (int64_t t = 0; t < T; ++t)
        for (int64_t i = 0; i < 256; ++i) {
          merged[t * 776 + shift + i] = dense.q[t * 256 + i];
          merged[t * 776 + shift + 256 + i] = dense.k[t * 256 + i];
          merged[t * 776 + shift + 512 + i] = dense.v[t * 256 + i];
        }
      Problem<> a = dense, b = dense;
      run(a);
      Uploaded<bf16, float> on(b, ex.stream());
      Buffer copy(kCuda, merged.size() * 2);
      copy_async(ex.stream(), copy.data(), merged.data(), merged.size() * 2);
      KdaArgs args = on.args();
      auto* base = static_cast<bf16*>(copy.data()) + shift;
      AnyConstView* views[] = {&args.q, &args.k, &args.v};
      for (int i = 0; i < 3; ++i) *views[i] = AnyConstView(base + i * 256, DType::bf16, {T, 2, 128}, {776, 128, 1});
      kda(ex, args);
      on.fetch();
      EXPECT_EQ(std::memcmp(a.out_row(0), b.out_row(0), a.out_bytes(T)), 0);
      EXPECT_EQ(std::memcmp(a.slot_data(1), b.slot_data(1), 2 * a.slot_bytes()), 0);
    }
  });
}

// Slots more than 2^31 elements into the pool.
TEST_F(KdaCuda, AFarSlotHasTheBitsOfANearOne) {
  for_each_row([&](const std::string&) {
    for (bool prefill : {false, true}) {
      const Sizes z{.H = 96, .K = 128, .V = 128};
      const Row row{.len = prefill ? 70 : 1};
      Problem<> near = prefill ? Problem<>(z, {row}) : Problem<>(z, {}, {row});
      const Problem<> before = near;
      run(near);
      constexpr int32_t kSlot = 1400;
      Problem<> far = before;
      const int64_t bytes = static_cast<int64_t>(near.slot_bytes());
      Buffer pool(kCuda, (kSlot + 1) * bytes);
      far.slot[0] = kSlot;
      Uploaded<bf16, float> on(far, ex.stream());
      char* slot = static_cast<char*>(pool.data()) + kSlot * bytes;
      copy_async(ex.stream(), slot, before.slot_data(1), bytes);
      KdaArgs args = on.args();
      args.state = AnyView(pool.data(), DType::f32, {kSlot + 1, 96, 128, 128});
      kda(ex, args);
      copy_async(ex.stream(), far.slot_data(1), slot, bytes);
      ex.stream().synchronize();
      EXPECT_EQ(ex.take_faults(), 0u);
      EXPECT_EQ(std::memcmp(far.slot_data(1), near.slot_data(1), near.slot_bytes()), 0) << prefill;
    }
  });
}

}  // namespace
}  // namespace kdelta::test
