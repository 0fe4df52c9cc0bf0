#include "apps/gpt/sample.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
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

core::Result<std::vector<std::int32_t>> sample_tokens(const NextLogits& next, std::size_t length,
                                                      std::vector<std::int32_t> window, std::size_t count,
                                                      const SamplingOptions& options,
                                                      const std::function<bool(std::int32_t)>& is_enough) {
  if (window.size() > length)
    window.erase(window.begin(), window.end() - static_cast<std::ptrdiff_t>(length));
  const core::CounterRandom random(options.seed, "sample");
  std::vector<std::int32_t> tokens;
  while (tokens.size() < count) {
    if (window.size() == length) {
      window.erase(window.begin(), window.begin() + static_cast<std::ptrdiff_t>(length + 1) / 2);
    }
    const auto logits = TRY(next(window));
    tokens.push_back(sample_token(logits, options, random.uniform(tokens.size())));
    window.push_back(tokens.back());
    if (is_enough(tokens.back())) break;
  }
  return tokens;
}

core::Result<std::string> sample_text(const NextLogits& next, std::size_t length, std::string_view prompt,
                                      std::size_t bytes, const SamplingOptions& options) {
  TextCodec codec;
  return sample_text(next, length, prompt, bytes, options, codec);
}

core::Result<std::string> sample_text(const NextLogits& next, std::size_t length, std::string_view prompt,
                                      std::size_t bytes, const SamplingOptions& options, TextCodec& codec) {
  std::vector<std::int32_t> window = codec.beginning();
  for (const std::int32_t token : TRY(codec.encode(prompt))) window.push_back(token);
  if (window.empty())
    return core::fail(core::Errc::invalid_argument, "sampling needs a prompt of one byte or more");
  std::size_t written = 0;
  const auto is_enough = [&](std::int32_t token) {
    written += codec.decode(std::span(&token, 1)).size();
    return written >= bytes || token == codec.end_of_text();
  };
  // A token that is not text takes a place too, so this always ends.
  const auto tokens = TRY(sample_tokens(next, length, std::move(window), bytes, options, is_enough));
  return codec.decode(tokens);
}

}  // namespace troupe::apps::gpt
