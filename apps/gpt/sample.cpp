#include "apps/gpt/sample.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/errors.hpp"
#include "core/random.hpp"

namespace troupe::apps::gpt {

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  std::vector<std::int32_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  // Equal logits keep the order of their tokens, so that the choice is the same on every machine.
  std::stable_sort(tokens.begin(), tokens.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  if (options.top_k > 0 && options.top_k < tokens.size()) tokens.resize(options.top_k);
  if (options.temperature <= 0) return tokens.front();

  std::vector<double> cumulative;
  double sum = 0;
  for (const std::int32_t token : tokens) {
    sum += std::exp((static_cast<double>(logits[token]) - logits[tokens.front()]) / options.temperature);
    cumulative.push_back(sum);
  }
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end() - 1, uniform * sum);
  return tokens[static_cast<std::size_t>(chosen - cumulative.begin())];
}

core::Result<std::string> sample_text(Model& model, Model::Parameters parameters, std::string_view prompt,
                                      std::size_t bytes, const SamplingOptions& options) {
  return sample_text([&](std::span<const std::int32_t> tokens) { return model.logits(parameters, tokens); },
                     model.shape().length, prompt, bytes, options);
}

core::Result<std::string> sample_text(const NextLogits& next, std::size_t length, std::string_view prompt,
                                      std::size_t bytes, const SamplingOptions& options) {
  if (prompt.empty())
    return core::fail(core::Errc::invalid_argument, "sampling needs a prompt of one byte or more");
  std::vector<std::int32_t> window;
  for (const char byte : prompt) window.push_back(static_cast<unsigned char>(byte));
  if (window.size() > length)
    window.erase(window.begin(), window.end() - static_cast<std::ptrdiff_t>(length));
  const core::CounterRandom random(options.seed, "sample");
  std::string text;
  for (std::size_t index = 0; index < bytes; ++index) {
    if (window.size() == length) {
      window.erase(window.begin(), window.begin() + static_cast<std::ptrdiff_t>(length + 1) / 2);
    }
    const auto logits = TRY(next(window));
    window.push_back(sample_token(logits, options, random.uniform(index)));
    text.push_back(static_cast<char>(window.back()));
  }
  return text;
}

}  // namespace troupe::apps::gpt
