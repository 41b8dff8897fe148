// Engine::perplexity: how well the model predicts given tokens.
#include <algorithm>
#include <cmath>

#include "kdelta/api/engine_impl.h"
#include "kdelta/core/check.h"

namespace kdelta {
namespace {

// -log softmax(row)[target]
double token_nll(const float* row, int64_t vocab, int32_t target) {
  const float top = *std::max_element(row, row + vocab);
  double sum = 0;
  for (int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(row[i] - top));
  return std::log(sum) + top - row[target];
}

}  // namespace

Perplexity Engine::perplexity(const std::vector<int32_t>& ids, int64_t window,
                              const std::function<void(int64_t done, int64_t total)>& progress,
                              const std::atomic<bool>* cancel) {
  runtime::Engine& engine = impl_->running(true);
  if (window < 2) fail(ErrorCode::invalid_argument, "window: ", window, ", expected >= 2");
  const auto total = static_cast<int64_t>(ids.size());
  Perplexity p;
  for (int64_t begin = 0; begin + 1 < total; begin += window) {
    const int64_t end = std::min(total, begin + window);
    const RequestGuard guard(engine, engine.submit({ids.begin() + begin, ids.begin() + end}, {}));
    int64_t at = begin;
    std::string error;
    while (engine.step([&](const runtime::TokenEvent& e) {
      if (e.error != nullptr) error = *e.error;
    })) {
      if (!error.empty()) fail(ErrorCode::failed, "perplexity: ", error);
      if (cancel != nullptr && cancel->load()) fail(ErrorCode::failed, "perplexity: cancelled");
      const View<const float> l = engine.last_logits();
      for (int64_t i = 0; i < l.dim(0); ++i, ++at) {
        if (at + 1 >= end) continue;
        const double nll = token_nll(l.at(i), vocab_size(), ids[static_cast<size_t>(at + 1)]);
        if (!std::isfinite(nll)) fail(ErrorCode::failed, "perplexity: the logits behind token ", at, " are not finite");
        p.nll += nll;
        ++p.tokens;
      }
    }
    if (progress) progress(end, total);
  }
  return p;
}

double Perplexity::value() const {
  return tokens > 0 ? std::exp(nll / static_cast<double>(tokens)) : 0;
}

}  // namespace kdelta
