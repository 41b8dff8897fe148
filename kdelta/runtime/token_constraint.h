// Which tokens an answer may consist of: what the engine asks about a request that was submitted with one. Called by
// the engine's thread alone, between the forward pass and the draw.
#pragma once

#include <cstdint>
#include <span>

namespace kdelta::runtime {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  enum class Next : uint8_t {
    some,   // these tokens may follow
    whole,  // none; the answer is whole and ends here
    none    // none, and the answer is not whole: a dead end
  };
  // Sets the bits of the tokens that may follow `output` and clears all others; ids that end the answer are among them
  // exactly where it is whole. `output` is the answer from its first token on, drafts included: between two calls it
  // grows, or loses its tail. What is thrown ends this request alone.
  virtual Next allow(std::span<const int32_t> output, std::span<uint32_t> bits) = 0;
  // How many of `drafts`, one after the other, may follow `output`.
  virtual int64_t accepted(std::span<const int32_t> output, std::span<const int32_t> drafts) = 0;
};

}  // namespace kdelta::runtime
