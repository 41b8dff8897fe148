// Equal bits: what a token gets depends on its own past alone.
#include "kdelta/ops/mla/test_scene.h"
#include "tests/support/sparse.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::MlaScene;
using test::MlaSequence;
using test::MlaSizes;
using test::TestExec;

class MlaExact : public test::VariantTest {
 protected:
  MlaExact() { ex_.force("mla", GetParam()); }
  TestExec ex_{2, int64_t{96} << 20};
};
KDELTA_INSTANTIATE_VARIANTS(MlaExact, mla_variants());

// Tokens [first, first + len) of the scene's only sequence in a call of their own, as row `index` of a batch of one.
template <class X>
std::vector<X> part(const Exec& ex, MlaScene<X>& scene, int32_t first, int32_t len, int prefill) {
  const int32_t context = scene.context[0] + first;
  Guarded<int32_t> cu({2}), ctx({1});
  cu[0] = 0, cu[1] = len, ctx[0] = context;
  Guarded<X> out({len, scene.s.H, scene.s.value});
  MlaArgs a = scene.args();
  a.q = a.q.rows(first, len);
  a.out = out.view();
  a.seq = {.cu = cu,
           .context = ctx,
           .pages = scene.pages,
           .n_prefill = prefill,
           .n_decode = 1 - prefill,
           .max_len = len,
           .max_context = context + len};
  mla(ex, a);
  return {out.data(), out.data() + out.size()};
}

template <class X>
void expect_rows(const MlaScene<X>& scene, int64_t first, const std::vector<X>& rows, const std::string& what) {
  EXPECT_EQ(std::memcmp(scene.out.data() + first * scene.out_row(), rows.data(), rows.size() * sizeof(X)), 0) << what;
}

TEST_P(MlaExact, APromptCutAnywhereGivesTheSameBits) {
  for (int32_t context : {0, 64, 10}) {
    MlaScene<bf16> scene({.H = 3}, {{context, 200}}, 1);
    mla(ex_, scene.args());
    for (const std::vector<int32_t>& cuts : {std::vector<int32_t>{64}, {128}, {64, 128, 192}, {1}, {37, 101}, {199}}) {
      int32_t begin = 0;
      for (size_t i = 0; i <= cuts.size(); ++i) {
        const int32_t end = i < cuts.size() ? cuts[i] : 200;
        expect_rows(scene, begin, part(ex_, scene, begin, end - begin, 1),
                    str("context ", context, " rows ", begin, "..", end));
        begin = end;
      }
    }
  }
}

TEST_P(MlaExact, VerifiedDraftsGetTheBitsOfSingleSteps) {
  // Past a block of 64 and past a chunk of 512; 96 columns are read in place, 40 widened.
  for (const MlaSizes& sizes : {MlaSizes{.H = 6}, MlaSizes{.H = 1, .rope = 32, .latent = 64}})
    for (int32_t context : {120, 503}) {
      MlaScene<float> scene(sizes, {{context, 17}}, 0);
      mla(ex_, scene.args());
      for (int32_t t : {0, 6, 7, 8, 9, 16})
        expect_rows(scene, t, part(ex_, scene, t, 1, 0), str("context ", context, " draft ", t));
    }
}

TEST_P(MlaExact, AStepAfterPrefillAgreesWithALongerPrefill) {
  for (int32_t len : {1, 63, 64, 65, 130}) {
    MlaScene<float> scene({}, {{0, len + 1}}, 1);
    mla(ex_, scene.args());
    const std::vector<float> step = part(ex_, scene, len, 1, 0);
    std::vector<double> got(step.begin(), step.end()), want(step.size());
    for (size_t i = 0; i < want.size(); ++i) want[i] = scene.out[len * scene.out_row() + static_cast<int64_t>(i)];
    EXPECT_LT(test::relative_rmse(got, want), 2e-6) << len;
  }
}

TEST_P(MlaExact, BitsDoNotDependOnCompanyOrThreads) {
  // 20 decode rows pass the batch of 16; heads pass the group of 48.
  std::vector<MlaSequence> sequences{{64, 70}, {0, 130}, {3, 1}};
  for (int32_t i = 0; i < 20; ++i) sequences.push_back({i * 13, 1 + i % 3});
  MlaScene<bf16> scene({.H = 50, .nope = 8, .rope = 4, .value = 8, .latent = 16}, sequences, 3);
  mla(ex_, scene.args());
  const Guarded<bf16> want = scene.out;
  for (int threads : {1, 3, 7}) {
    TestExec other(threads, int64_t{96} << 20);
    other.force("mla", GetParam());
    mla(other, scene.args());
    EXPECT_TRUE(same_bits(scene.out, want)) << threads << " threads";
  }
  for (int64_t n : {0, 1, 2, 3, 18, 22}) {
    const int32_t len = scene.cu[n + 1] - scene.cu[n];
    Guarded<int32_t> cu({2});
    cu[0] = 0, cu[1] = len;
    Guarded<bf16> out({len, 50, 8});
    MlaArgs a = scene.args();
    a.q = a.q.rows(scene.cu[n], len);
    a.out = out.view();
    a.seq.cu = cu;
    a.seq.context = View<const int32_t>(&scene.context[n], {1});
    a.seq.pages = View<const int32_t>(&scene.pages[n * scene.pages_per_row], {1, scene.pages_per_row});
    a.seq.n_prefill = n < 3;
    a.seq.n_decode = n >= 3;
    mla(ex_, a);
    EXPECT_EQ(std::memcmp(out.data(), &want[scene.cu[n] * scene.out_row()], static_cast<size_t>(out.size()) * 2), 0)
        << "sequence " << n;
  }
}

TEST_P(MlaExact, AContextOfManyChunksGivesTheSameBitsWhoeverTakesThem) {
  // fp32 outputs: bf16 would round a wrong order of the sums away.
  const std::vector<MlaSequence> sequences{{511, 1}, {1700, 2}, {512, 1}, {509, 6}, {40, 1}, {6000, 1}};
  for (const MlaSizes& sizes : {MlaSizes{.H = 2}, MlaSizes{.H = 2, .rope = 32, .latent = 64}}) {
    MlaScene<float> scene(sizes, sequences, 0);
    mla(ex_, scene.args());
    const Guarded<float> want = scene.out;
    for (int threads : {1, 3, 5}) {
      TestExec other(threads, int64_t{96} << 20);
      other.force("mla", GetParam());
      mla(other, scene.args());
      EXPECT_TRUE(same_bits(scene.out, want)) << threads << " threads";
    }
    for (size_t n = 0; n < sequences.size(); ++n) {
      const auto at = static_cast<int64_t>(n);
      const int32_t first = scene.cu[at], len = scene.cu[at + 1] - first;
      Guarded<int32_t> cu({2});
      cu[0] = 0, cu[1] = len;
      Guarded<float> out({len, scene.s.H, scene.s.value});
      MlaArgs a = scene.args();
      a.q = a.q.rows(first, len);
      a.out = out.view();
      a.seq.cu = cu;
      a.seq.context = View<const int32_t>(&scene.context[at], {1});
      a.seq.pages = View<const int32_t>(&scene.pages[at * scene.pages_per_row], {1, scene.pages_per_row});
      a.seq.n_decode = 1;
      mla(ex_, a);
      EXPECT_EQ(std::memcmp(out.data(), &want[first * scene.out_row()], static_cast<size_t>(out.size()) * 4), 0)
          << "sequence " << n;
    }
  }
}

TEST_P(MlaExact, BitsDependNeitherOnPageNumbersNorOnThePageSize) {
  for (bool in_place : {false, true})
    for (int prefill : {0, 1}) {
      const std::vector<MlaSequence> sequences{{70, prefill ? 90 : 2}};
      MlaSizes sizes{.page = 16};
      if (in_place) sizes.rope = 32, sizes.latent = 64;
      MlaScene<float> scene(sizes, sequences, prefill);
      mla(ex_, scene.args());
      for (int64_t page : {1, 7, 64, 100, 256}) {
        sizes.page = page;
        MlaScene<float> other(sizes, sequences, prefill);
        mla(ex_, other.args());
        EXPECT_TRUE(same_bits(other.out, scene.out)) << "page of " << page;
      }
    }
}

TEST_P(MlaExact, AShardOfTheHeadsGetsTheirBits) {
  // 96 columns are read in place, 40 widened; five tokens share what they read.
  for (const MlaSizes& sizes : {MlaSizes{.H = 12}, MlaSizes{.H = 12, .rope = 32, .latent = 64}})
    for (int prefill : {0, 1})
      for (int32_t tokens : {1, 5})
        for (int64_t first : {6, 10, 11}) {
          MlaScene<bf16> scene(sizes, {{550, tokens}}, prefill);
          mla(ex_, scene.args());
          const int64_t heads = 12 - first, rows = 32;
          Guarded<bf16> out({scene.T, heads, 16});
          MlaArgs a = scene.args();
          a.q = a.q.slice(1, first, heads);
          a.kv_b = a.kv_b.slice_rows(first * rows, heads * rows);
          a.out = out.view();
          mla(ex_, a);
          for (int64_t t = 0; t < tokens; ++t)
            EXPECT_EQ(std::memcmp(&out[t * heads * 16], &scene.out[(t * 12 + first) * 16],
                                  static_cast<size_t>(heads) * 16 * 2),
                      0)
                << "heads from " << first << " token " << t;
        }
}

TEST_P(MlaExact, ACacheAndQueriesPast32BitsOfElementsGiveTheBitsOfNearOnes) {
  // A6: page 2^26 of 16 rows of 40 elements lies 2^35 elements in; rows of q and out are 2^32 elements apart.
  constexpr int64_t kFar = int64_t{1} << 26, kStride = (int64_t{1} << 32) + 8;
  for (int prefill : {0, 1}) {
    MlaScene<bf16> scene({}, {{20, 3}}, prefill);
    mla(ex_, scene.args());
    const int64_t page = scene.s.page * scene.width(), row = 2 * 24;
    test::Sparse<bf16> cache((kFar + 3) * page), q(3 * kStride), out(3 * kStride);
    Guarded<int32_t> pages = scene.pages;
    for (int64_t p = 0; p < 2; ++p) {
      pages[p] = static_cast<int32_t>(kFar + p);
      std::copy_n(scene.cache.data() + scene.pages[p] * page, page, cache.data() + pages[p] * page);
    }
    for (int64_t t = 0; t < 3; ++t) std::copy_n(&scene.q[t * row], row, q.data() + t * kStride);
    MlaArgs a = scene.args();
    a.q = AnyConstView(q.data(), DType::bf16, {3, 2, 24}, Strides{kStride, 24, 1});
    a.out = AnyView(out.data(), DType::bf16, {3, 2, 16}, Strides{kStride, 16, 1});
    a.cache = AnyConstView(cache.data(), DType::bf16, {kFar + 3, 16, 40});
    a.seq.pages = pages;
    mla(ex_, a);
    for (int64_t t = 0; t < 3; ++t)
      EXPECT_EQ(std::memcmp(out.data() + t * kStride, &scene.out[t * 32], 32 * sizeof(bf16)), 0) << t;
  }
}

}  // namespace
}  // namespace kdelta
