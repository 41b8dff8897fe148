#include "kdelta/model/kimi_linear.h"

#include "kdelta/core/error.h"
#include "kdelta/model/decoder.h"
#include "kdelta/ops/norm/norm.h"

namespace kdelta {
namespace {

class KimiLinear final : public Decoder {
 public:
  using Decoder::Decoder;

 private:
  // h <- h + sublayer(rms_norm(h))
  class Stream final : public Residual {
   public:
    Stream(const KimiLinear& model, const AnyView& sum) : model_(model), sum_(sum) {}
    void read_mixer_input(const Exec& ex, int64_t layer, const AnyView& out) override {
      read(ex, model_.layers_[static_cast<size_t>(layer)].input_norm, out);
    }
    void read_ffn_input(const Exec& ex, int64_t layer, const AnyView& out) override {
      read(ex, model_.layers_[static_cast<size_t>(layer)].post_norm, out);
    }
    void read_final(const Exec& ex, const AnyView& out) override { read(ex, model_.final_norm_, out); }
    AnyConstView mixer_addend(int64_t) override { return sum_; }
    AnyView sum() const override { return sum_; }

   private:
    void read(const Exec& ex, const View<const float>& weight, const AnyView& out) const {
      norm(ex, {.x = sum_, .weight = weight, .out = out, .eps = model_.c_.rms_norm_eps});
    }
    const KimiLinear& model_;
    AnyView sum_;
  };

  void with_residual(const Exec& ex, const Step& step) const override {
    Stream stream(*this, ex.scratch->take(step.activation, {step.b.tokens(), c_.hidden_size}));
    run_layers(ex, step, stream);
  }
};

}  // namespace

std::unique_ptr<Model> make_kimi_linear(const ModelConfig& config, const Shard& shard) {
  if (config.attn_res_block > 0)
    fail(ErrorCode::bad_file, "config.json: attn_res_block_size: ", config.attn_res_block,
         ", expected absent (a Kimi K3 mixes residuals, Kimi-Linear does not)");
  return std::make_unique<KimiLinear>(config, shard);
}

}  // namespace kdelta
