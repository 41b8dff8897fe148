// A step of mixed rows in pieces: where it is broken, and that nothing is lost between them. Planned, so without a
// device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kdelta/core/arena.h"
#include "kdelta/model/load.h"
#include "kdelta/runtime/batch_builder.h"
#include "tests/support/op_test.h"

namespace kdelta::runtime {
namespace {

using testing::AnyOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

using Names = std::vector<std::string>;

// The ops of a planned step, those of pieces apart from the others.
class Walk final : public Pieces, public OpObserver {
 public:
  explicit Walk(const Model& model) : model_(model) {
    for (const auto& layer : model.states(StateParams{})) {
      std::vector<AnyView>& row = states_.emplace_back();
      for (const StateSpec& s : layer) {
        Shape shape;
        shape.rank = s.shape.rank + 1;
        shape.dim[0] = 8;
        for (int i = 0; i < s.shape.rank; ++i) shape.dim[static_cast<size_t>(i) + 1] = s.shape[i];
        row.push_back(AnyView(reinterpret_cast<void*>(Arena::kAlign), s.dtype, shape));
      }
    }
    ex_.scratch = &arena_, ex_.threads = &threads_, ex_.options = &options_;
    ex_.observer = this, ex_.planning = true;
    logits_ = {reinterpret_cast<float*>(Arena::kAlign), {kCapacity.logit_rows, model.config().vocab_size}};
  }
  void whole() { model_.forward(ex_, batch_, states_, DType::bf16, logits_); }
  void broken(const Names& also = {}) {
    model_.forward_in_pieces(ex_, batch_, states_, DType::bf16, logits_, break_list(model_.sublayers(), also), *this);
  }
  void run(const Exec&, size_t piece, const std::function<void()>& enqueue) override {
    EXPECT_EQ(piece, pieces.size());
    pieces.emplace_back();
    inside_ = true;
    enqueue();
    inside_ = false;
  }
  void on_op(std::string_view op, std::string_view, const Cost&) override {
    all.emplace_back(op);
    (inside_ ? pieces.back() : between).emplace_back(op);
  }

  Names all, between;
  std::vector<Names> pieces;

 private:
  static constexpr BatchCapacity kCapacity{
      .tokens = 96, .sequences = 4, .columns = 1, .pages = 2, .page_tokens = 64, .logit_rows = 4, .snapshots = 0};
  const Model& model_;
  std::vector<std::vector<AnyView>> states_;
  Arena arena_ = Arena::measuring(Device{});
  ThreadPool threads_{1};
  Options options_;
  Exec ex_;
  Batch batch_ = BatchBuilder::planning(kCapacity, false);
  View<float> logits_;
  bool inside_ = false;
};

class StepPieces : public testing::TestWithParam<const char*> {
 protected:
  LoadedModel loaded_ = load_model(GetParam(), LoadFormat::config_only);
  const Model& model_ = *loaded_.model;
  size_t layers_ = static_cast<size_t>(loaded_.config.layers());
};
INSTANTIATE_TEST_SUITE_P(Models, StepPieces, testing::Values("tests/golden/k3_a", "tests/golden/linear_a"),
                         [](const auto& model) { return std::string(model.param).substr(13); });

TEST_P(StepPieces, AreBrokenAtEveryMixerAndLoseNoOp) {
  Walk whole(model_), broken(model_);
  whole.whole();
  broken.broken();
  EXPECT_EQ(broken.all, whole.all);
  EXPECT_EQ(broken.pieces.size(), layers_ + 1);
  EXPECT_THAT(broken.pieces, Each(Not(Contains(AnyOf("kda", "short_conv", "gated_norm", "mla", "mla_append")))));
  EXPECT_THAT(broken.between, Not(Contains(AnyOf("router", "grouped_linear", "moe_combine"))));
  EXPECT_EQ(broken.pieces[0].front(), "embed");
  EXPECT_EQ(std::count(broken.between.begin(), broken.between.end(), "embed"), 1) << "rows of the head";
}

TEST_P(StepPieces, ASublayerThatIsNamedIsABreakOfItsOwn) {
  const std::string last = model_.sublayers().back().name;
  Walk plain(model_), more(model_);
  plain.broken();
  more.broken({last});
  EXPECT_EQ(more.all, plain.all);
  EXPECT_EQ(more.pieces.size(), layers_ + 2);
  EXPECT_THAT(plain.pieces[layers_], Contains("grouped_linear"));
  EXPECT_THAT(more.between, Contains("grouped_linear"));
}

TEST_P(StepPieces, TheBreakListHasTheMixersAndRefusesUnknownNames) {
  const auto all = model_.sublayers();
  ASSERT_EQ(all.size(), 2 * layers_);
  const std::vector<bool> list = break_list(all, {});
  for (size_t s = 0; s < all.size(); ++s) {
    EXPECT_EQ(list[s], s % 2 == 0) << all[s].name;
    EXPECT_EQ(all[s].name.ends_with("self_attn"), s % 2 == 0) << all[s].name;
    // Tensors of the sublayer begin with its name.
    bool owns = false;
    for (const PlacedSpec& w : loaded_.model->weights()) owns |= w.prefix == all[s].name + ".";
    EXPECT_TRUE(owns) << all[s].name;
  }
  const Names unknown = {"model.layers.99.mlp"};
  EXPECT_THAT(test::error_of([&] { (void)break_list(all, unknown); }),
              testing::AllOf(HasSubstr("break_at: 'model.layers.99.mlp'"), HasSubstr(all[0].name)));
}

}  // namespace
}  // namespace kdelta::runtime
