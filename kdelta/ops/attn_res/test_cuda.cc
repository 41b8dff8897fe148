#include "kdelta/ops/attn_res/variants.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {
namespace {

template <class E>
void check(int64_t capacity, int64_t n, int64_t T, int64_t D, bool normed, int64_t column = 0, bool adds = false) {
  SCOPED_TRACE(str("n ", n, " T ", T, " D ", D, " normed ", normed, " column ", column, " adds ", adds));
  const int64_t stride = D + 2 * column;
  Guarded<E> blocks({capacity, T, stride}), sum({T, stride}), addend({T, stride}), sum_out({T, stride}),
      out({T, stride});
  Guarded<float> score({D}), weight({D});
  EffectCase c;
  if (adds) {
    c.array("addend", addend);
    c.array("sum_out", sum_out);
  }
  c.array("blocks", blocks);
  c.array("sum", sum);
  // A normed row is rounded twice.
  Bound bound = rounded<E>(2e-5, sizeof(E) == 2 ? 2e-4 : 2e-6);
  if (normed && sizeof(E) == 2) bound.relative = 0x1p-6;
  c.array("out", out, bound);
  c.array("score", score);
  c.array("weight", weight);
  c.fill = [&](Rng& rng) {
    fill_normal(blocks, rng, 1.0f, 0.1f);
    for (int64_t i = n * T * stride; i < blocks.size(); ++i) blocks[i] = from_float<E>(NAN);  // never read
    fill_normal(sum, rng, 2.0f);
    fill_normal(addend, rng, 1.0f);
    fill_normal(score, rng, 3.0f / std::sqrt(static_cast<float>(D)));
    fill_normal(weight, rng, 0.5f, 1.0f);
  };
  c.call = [&](const Exec& ex, const EffectCase::At& at) {
    attn_res(ex, {.blocks = AnyConstView(at(blocks)).columns(column, D),
                  .n = n,
                  .sum = AnyConstView(at(sum)).columns(column, D),
                  .addend = adds ? AnyConstView(at(addend)).columns(column, D) : AnyConstView(),
                  .sum_out = adds ? AnyView(at(sum_out)).columns(column, D) : AnyView(),
                  .score_weight = at(score),
                  .eps = 1e-5f,
                  .norm_weight = normed ? View<const float>(at(weight)) : View<const float>(),
                  .norm_eps = 1e-5f,
                  .out = AnyView(at(out)).columns(column, D)});
  };
  c.run("attn_res", attn_res_variants());
}

TEST(AttnResCuda, EqualsTheReferenceForEveryNumberOfBlocksWidthAndAlignment) {
  for (bool normed : {false, true}) {
    for (int64_t n : {0, 1, 2, 5, 8})
      for (int64_t D : {8, 100, 2304, 4104}) {
        check<bf16>(8, n, 3, D, normed);
        check<float>(8, n, 2, D, normed);
      }
    check<bf16>(8, 3, 3, 2304, normed, 8);
    check<bf16>(8, 3, 3, 2304, normed, 3);
    check<bf16>(8, 8, 5, 7168, normed);
  }
}

TEST(AttnResCuda, TheSumTakesUpItsAddendInTheSamePass) {
  for (bool normed : {false, true}) {
    for (int64_t n : {0, 1, 8})
      for (int64_t D : {8, 100, 2304, 4104}) {
        check<bf16>(8, n, 3, D, normed, 0, true);
        check<float>(8, n, 2, D, normed, 0, true);
      }
    check<bf16>(8, 3, 3, 2304, normed, 8, true);
    check<bf16>(8, 3, 3, 2304, normed, 3, true);
    check<bf16>(8, 8, 401, 7168, normed, 0, true);
  }
}

// More tokens than blocks: the ring goes round many times.
TEST(AttnResCuda, ManyTokensABlockEqualTheReference) {
  check<bf16>(2, 2, 700, 520, true);
  check<bf16>(8, 8, 401, 7168, true);
  check<bf16>(1, 0, 2000, 64, false);
}

// Which row takes a call depends on the number of tokens, and a token's bits may not.
TEST(AttnResCuda, TheClusterAndTheRingHaveTheSameBits) {
  constexpr int64_t T = 21, D = 7168, kBlocks = 8;
  CudaExec ex;
  Rng rng(11);
  Guarded<bf16> blocks({kBlocks, T, D}), sum({T, D}), addend({T, D});
  Guarded<float> score({D}), weight({D});
  fill_normal(blocks, rng, 1.0f, 0.1f);
  fill_normal(sum, rng, 2.0f);
  fill_normal(addend, rng, 1.0f);
  fill_normal(score, rng, 0.04f);
  fill_normal(weight, rng, 0.5f, 1.0f);
  const auto device = [&](const void* data, int64_t bytes) {
    auto b = std::make_unique<Buffer>(kCuda, bytes);
    copy_async(ex.stream(), b->data(), data, bytes);
    return b;
  };
  const auto d_blocks = device(blocks.data(), blocks.size() * 2), d_sum = device(sum.data(), sum.size() * 2),
             d_addend = device(addend.data(), addend.size() * 2), d_score = device(score.data(), D * 4),
             d_weight = device(weight.data(), D * 4);
  for (int64_t n : {0, 1, 4, 8})
    for (int64_t width : {int64_t{520}, D})
      for (const auto& [normed, adds] : {std::pair(false, false), {true, false}, {true, true}}) {
        SCOPED_TRACE(str("n ", n, " D ", width, " normed ", normed, " adds ", adds));
        std::vector<std::vector<bf16>> results;
        for (const char* row : {"cuda_ring", "cuda_cluster"}) {
          ex.force("attn_res", row);
          Buffer out(kCuda, 2 * T * width * 2);  // the new sum behind the mixture
          const AnyView both = out.view(DType::bf16, {2 * T, width});
          attn_res(ex, {.blocks = AnyConstView(d_blocks->view(DType::bf16, {kBlocks, T, D})).columns(0, width),
                        .n = n,
                        .sum = AnyConstView(d_sum->view(DType::bf16, {T, D})).columns(0, width),
                        .addend =
                            adds ? AnyConstView(d_addend->view(DType::bf16, {T, D})).columns(0, width) : AnyConstView(),
                        .sum_out = adds ? both.rows(T, T) : AnyView(),
                        .score_weight = d_score->view<float>({width}),
                        .eps = 1e-5f,
                        .norm_weight = normed ? d_weight->view<float>({width}) : View<float>(),
                        .norm_eps = 1e-5f,
                        .out = both.rows(0, T)});
          results.emplace_back(static_cast<size_t>((adds ? 2 : 1) * T * width));
          copy_async(ex.stream(), results.back().data(), out.data(), static_cast<int64_t>(results.back().size()) * 2);
          ex.stream().synchronize();
        }
        EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), results[0].size() * 2), 0);
      }
}

}  // namespace
}  // namespace kdelta::test
