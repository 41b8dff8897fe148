#include "kdelta/ops/mla/test_scene.h"
#include "tests/support/sparse.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::MlaScene;
using test::TestExec;

// This step's rows of a scene as mla_append takes them, with a gap after each row.
template <class X>
struct Step {
  Guarded<X> rows;
  Step(MlaScene<X>& scene, int64_t stride) : rows({scene.T, stride}) {
    for (int64_t n = 0; n < scene.N; ++n)
      for (int64_t t = scene.cu[n]; t < scene.cu[n + 1]; ++t)
        std::copy_n(scene.latent(n, scene.context[n] + t - scene.cu[n]), scene.width(), rows.data() + t * stride);
  }
};

template <class X>
MlaAppendArgs append_args(MlaScene<X>& scene, Step<X>& step, Guarded<X>& cache) {
  return {.latent = AnyConstView(step.rows.view()).columns(0, scene.s.latent),
          .rope = AnyConstView(step.rows.view()).columns(scene.s.latent, scene.s.rope),
          .seq = scene.seq(),
          .cache = cache.view()};
}

template <class X>
void expect_stored(int threads) {
  TestExec ex(threads);
  MlaScene<X> scene({.rope = 3, .latent = 9, .page = 7}, {{0, 0}, {5, 150}, {13, 1}, {14, 0}, {0, 3}}, 2);
  Step<X> step(scene, scene.width() + 5);
  Guarded<X> cache = scene.cache;
  for (int64_t n = 0; n < scene.N; ++n)  // forget this step's tokens
    for (int64_t i = scene.context[n]; i < scene.context[n] + scene.cu[n + 1] - scene.cu[n]; ++i)
      std::fill_n(cache.data() + (scene.row(n, i) - scene.cache.data()), scene.width(), MlaScene<X>::convert(NAN));
  mla_append(ex, append_args(scene, step, cache));
  EXPECT_TRUE(same_bits(cache, scene.cache)) << "the tokens are there and nothing else moved";
  EXPECT_TRUE(cache.guards_intact());
}

TEST(MlaAppend, StoresEveryTokenAtItsPositionAndTouchesNothingElse) {
  for (int threads : {1, 3}) {
    expect_stored<float>(threads);
    expect_stored<bf16>(threads);
  }
}

TEST(MlaAppend, APagePast32BitsOfElementsIsStoredThere) {
  TestExec ex;
  constexpr int32_t kFar = 1 << 26;
  MlaScene<bf16> scene({}, {{15, 2}}, 1);
  Step<bf16> step(scene, scene.width());
  test::Sparse<bf16> cache((int64_t{kFar} + 2) * 16 * 40);
  scene.pages[0] = kFar;
  scene.pages[1] = kFar + 1;
  Guarded<bf16> unused(scene.cache.shape());
  MlaAppendArgs a = append_args(scene, step, unused);
  a.cache = AnyView(cache.data(), DType::bf16, {kFar + 2, 16, 40});
  mla_append(ex, a);
  for (int64_t i = 0; i < 2; ++i)
    EXPECT_EQ(std::memcmp(cache.data() + (int64_t{kFar} * 16 + 15 + i) * 40, scene.latent(0, 15 + i), 80), 0) << i;
}

TEST(MlaAppendRefuses, WrongArgumentsByNameBeforeAnythingIsWritten) {
  TestExec ex;
  MlaScene<float> scene({}, {{20, 2}}, 1);
  Step<float> step(scene, scene.width());
  Guarded<float> cache(scene.cache.shape());
  auto with = [&](auto change) {
    MlaAppendArgs a = append_args(scene, step, cache);
    change(a);
    return test::error_of([&] { mla_append(ex, a); });
  };
  EXPECT_EQ(with([](MlaAppendArgs& a) { a.rope = a.rope.rows(0, 1); }),
            "mla_append: rope: shape [1, 8], expected [5, 8]");
  EXPECT_EQ(with([](MlaAppendArgs& a) { a.latent.dtype = DType::bf16; }),
            "mla_append: dtypes of latent, rope and cache: BF16, F32, F32, expected one");
  EXPECT_EQ(with([](MlaAppendArgs& a) { a.cache.stride[1] += 1; }), "mla_append: cache: expected dense strides");
  EXPECT_THAT(with([](MlaAppendArgs& a) { a.cache.shape.dim[2] = 39; }),
              testing::HasSubstr("mla_append: cache: shape"));
  scene.pages[1] = 0;
  EXPECT_THAT(with([](MlaAppendArgs&) {}), testing::HasSubstr("mla_append: pages[0, 1] is 0, expected 1.."));
  for (int64_t i = 0; i < cache.size(); ++i) ASSERT_TRUE(std::isnan(cache[i]));
}

TEST(MlaAppendPlanning, TouchesNothing) {
  TestExec ex;
  Exec planning = ex.exec();
  planning.planning = true;
  MlaScene<float> scene({}, {{20, 2}}, 1);
  Step<float> step(scene, scene.width());
  Guarded<float> cache(scene.cache.shape());
  mla_append(planning, append_args(scene, step, cache));
  for (int64_t i = 0; i < cache.size(); ++i) ASSERT_TRUE(std::isnan(cache[i]));
}

}  // namespace
}  // namespace kdelta
