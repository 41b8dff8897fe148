#include "kdelta/model/kimi_k3.h"

#include "kdelta/core/check.h"
#include "kdelta/model/decoder.h"
#include "kdelta/ops/attn_res/attn_res.h"

namespace kdelta {
namespace {

class KimiK3 final : public Decoder {
 public:
  KimiK3(const ModelConfig& config, const Shard& shard)
      : Decoder(config, shard), mixer_score_(layers_.size()), ffn_score_(layers_.size()) {}

 private:
  // Every attn_res_block layers the running sum is committed as a block and starts again from the attention output.
  // Each sublayer reads a per-token mixture of the committed blocks and the running sum. Stream n holds the running sum
  // while n blocks are committed, so a commit is ++n and moves no data.
  class Stream final : public Residual {
   public:
    Stream(const KimiK3& model, const AnyView& streams) : model_(model), streams_(streams) {}
    void read_mixer_input(const Exec& ex, int64_t layer, const AnyView& out) override {
      const auto l = static_cast<size_t>(layer);
      read(ex, model_.mixer_score_[l], model_.layers_[l].input_norm, out);
    }
    AnyConstView mixer_addend(int64_t layer) override {
      if (layer % model_.c_.attn_res_block != 0) return sum();
      ++n_;
      return {};
    }
    void read_ffn_input(const Exec& ex, int64_t layer, const AnyView& out) override {
      const auto l = static_cast<size_t>(layer);
      read(ex, model_.ffn_score_[l], model_.layers_[l].post_norm, out);
    }
    void read_final(const Exec& ex, const AnyView& out) override {
      read(ex, model_.final_score_, model_.final_norm_, out);
    }
    AnyView sum() const override {
      const AnyView one = streams_.slice(0, n_, 1);
      return {one.data, one.dtype, {one.dim(1), one.dim(2)}};
    }

   private:
    void read(const Exec& ex, const View<const float>& score, const View<const float>& norm_weight,
              const AnyView& out) const {
      const float eps = model_.c_.rms_norm_eps;
      attn_res(ex, {.blocks = streams_,
                    .n = n_,
                    .sum = sum(),
                    .score_weight = score,
                    .eps = eps,
                    .norm_weight = norm_weight,
                    .norm_eps = eps,
                    .out = out});
    }
    const KimiK3& model_;
    AnyView streams_;  // [commits + 1, T, D]
    int64_t n_ = 0;
  };

  void with_residual(const Exec& ex, const Step& step) const override {
    const int64_t commits = (c_.layers() + c_.attn_res_block - 1) / c_.attn_res_block;
    Stream stream(*this, ex.scratch->take(step.activation, {commits + 1, step.b.tokens(), c_.hidden_size}));
    run_layers(ex, step, stream);
  }

  std::vector<PlacedSpec> residual_weights() override {
    const auto score = [&](const std::string& prefix, const std::string& name, View<const float>* target) {
      return PlacedSpec{prefix,
                        {.names = {name + "_norm", name + "_proj"},
                         .kind = WeightKind::score_row,
                         .shape = {c_.hidden_size},
                         .target = target}};
    };
    std::vector<PlacedSpec> all = {score(c_.weight_prefix, "model.output_attn_res", &final_score_)};
    for (size_t l = 0; l < layers_.size(); ++l) {
      all.push_back(score(layer_prefix(static_cast<int64_t>(l)), "self_attention_res", &mixer_score_[l]));
      all.push_back(score(layer_prefix(static_cast<int64_t>(l)), "mlp_res", &ffn_score_[l]));
    }
    return all;
  }

  std::vector<View<const float>> mixer_score_, ffn_score_;
  View<const float> final_score_;
};

}  // namespace

std::unique_ptr<Model> make_kimi_k3(const ModelConfig& config, const Shard& shard) {
  if (config.attn_res_block < 1)
    fail(ErrorCode::bad_file, "config.json: text_config.attn_res_block_size: missing (Kimi K3 needs it)");
  return std::make_unique<KimiK3>(config, shard);
}

}  // namespace kdelta
