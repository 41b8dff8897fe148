// The decoder both Kimi models are: embedding, layers of (mixer, feed-forward), head. How a sublayer reads the residual
// stream is the one thing in which the two differ, so it is the one thing a model supplies.
#pragma once

#include "kdelta/model/model.h"

namespace kdelta {

// The residual stream of one step. A sublayer reads a normed view of it and adds its output through sum().
class Residual {
 public:
  virtual ~Residual() = default;
  // The normed input of the attention (feed-forward) sublayer of `layer`, written to out.
  virtual void read_mixer_input(const Exec& ex, int64_t layer, const AnyView& out) = 0;
  virtual void read_ffn_input(const Exec& ex, int64_t layer, const AnyView& out) = 0;
  // After all layers, normed for the head.
  virtual void read_final(const Exec& ex, const AnyView& out) = 0;
  // Where the mixer of `layer` writes, and what is added to its output (null: the sum restarts).
  virtual AnyConstView mixer_addend(int64_t layer) = 0;
  // The running sum [T, D].
  virtual AnyView sum() const = 0;
};

class Decoder : public Model {
 public:
  Decoder(const ModelConfig& config, const Shard& shard);
  const ModelConfig& config() const override { return c_; }
  const Shard& shard() const override { return shard_; }
  std::vector<PlacedSpec> weights() override;
  std::vector<std::vector<StateSpec>> states(const StateParams& params) const override;
  void forward(const Exec& ex, const Batch& b, std::span<const std::vector<AnyView>> states, DType activation,
               const View<float>& logits) const override;
  std::span<const Sublayer> sublayers() const override { return sublayers_; }
  void forward_in_pieces(const Exec& ex, const Batch& b, std::span<const std::vector<AnyView>> states, DType activation,
                         const View<float>& logits, const std::vector<bool>& broken, Pieces& pieces) const override;
  void replay(const Exec& ex, const View<const int32_t>& slot, const View<const int32_t>& accepted,
              std::span<const std::vector<AnyView>> states) const override;

 protected:
  struct Step {
    const Batch& b;
    std::span<const std::vector<AnyView>> states;
    DType activation;
    const View<float>& logits;
    const std::vector<bool>* broken = nullptr;  // null: not at all
    Pieces* pieces = nullptr;
  };
  struct Layer {
    std::unique_ptr<Mixer> mixer;
    std::unique_ptr<Ffn> ffn;
    std::string ffn_prefix;
    View<const float> input_norm, post_norm;
  };

  // Makes the stream for `rows` tokens, its memory from the arena, and calls run_layers() with it. (The object lives on
  // the stack: a step allocates nothing.)
  virtual void with_residual(const Exec& ex, const Step& step) const = 0;
  void run_layers(Exec ex, const Step& step, Residual& stream) const;
  // Weights of the residual stream beyond the norms.
  virtual std::vector<PlacedSpec> residual_weights() { return {}; }

  std::string layer_prefix(int64_t layer) const {
    return c_.weight_prefix + "model.layers." + std::to_string(layer) + ".";
  }

  ModelConfig c_;
  Shard shard_;
  std::vector<Layer> layers_;
  View<const float> final_norm_;

 private:
  void enqueue(const Exec& ex, const Step& step) const;
  // Of sublayer s, two a layer: the mixer, the feed-forward.
  void read_input(const Exec& ex, size_t s, Residual& stream, const AnyView& x) const;
  void run_sublayer(const Exec& ex, size_t s, const Step& step, Residual& stream, const AnyView& x) const;
  // Rows of the vocabulary are dealt to ranks: embeddings are their sum, logits stand side by side.
  void embed_tokens(const Exec& ex, const View<const int32_t>& token, const AnyView& out) const;
  void project_logits(const Exec& ex, const AnyConstView& x, const View<float>& logits) const;

  Matrix embed_, head_;
  std::vector<Sublayer> sublayers_;
};

}  // namespace kdelta
