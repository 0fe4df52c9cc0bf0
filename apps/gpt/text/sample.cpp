#include "apps/gpt/text/sample.hpp"

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

core::Result<std::vector<std::int32_t>> sample_tokens(const NextLogits& next, std::size_t length,
                                                      std::vector<std::int32_t> window, std::size_t count,
                                                      const SamplingOptions& options,
                                                      const std::function<bool(std::int32_t)>& is_enough) {
  const auto keep_last = [&window](std::size_t kept) {
    if (window.size() > kept) window.erase(window.begin(), window.end() - static_cast<std::ptrdiff_t>(kept));
  };
  const core::CounterRandom random(options.seed, "sample");
  std::vector<std::int32_t> tokens;
  while (tokens.size() < count) {
    if (window.size() >= length) keep_last(std::max<std::size_t>(length / 2, 1));
    const auto logits = TRY(next(window));
    tokens.push_back(sample_token(logits, options, random.uniform(tokens.size())));
    window.push_back(tokens.back());
    if (is_enough(tokens.back())) break;
  }
  return tokens;
}

core::Result<std::vector<std::int32_t>> encode_prompt(std::string_view prompt, std::size_t vocabulary,
                                                      TextCodec& codec) {
  if (codec.unreadable()) return tl::unexpected(*codec.unreadable());
  std::vector<std::int32_t> tokens = codec.beginning();
  const auto text = codec.encode(prompt);
  if (!text) {
    return core::fail(text.error().code, "the prompt cannot be read: {}; give another --prompt",
                      text.error().message);
  }
  tokens.insert(tokens.end(), text->begin(), text->end());
  if (tokens.empty())
    return core::fail(core::Errc::invalid_argument, "sampling needs a prompt of one byte or more");
  for (const std::int32_t token : tokens) {
    if (token >= 0 && static_cast<std::size_t>(token) < vocabulary) continue;
    return core::fail(
        core::Errc::invalid_argument,
        "the prompt has the token {}, and the model knows {}, from 0; give another --prompt, or "
        "the tokenizer.json of this model",
        token, vocabulary);
  }
  return tokens;
}

core::Result<std::string> sample_text(const NextLogits& next, std::size_t length,
                                      std::vector<std::int32_t> prompt, std::size_t bytes,
                                      const SamplingOptions& options, TextCodec& codec) {
  std::size_t written = 0;
  const auto is_enough = [&](std::int32_t token) {
    written += codec.decode(std::span(&token, 1)).size();
    return written >= bytes || token == codec.end_of_text();
  };
  // A token that is not text takes a place too, so this always ends.
  const auto tokens = TRY(sample_tokens(next, length, std::move(prompt), bytes, options, is_enough));
  return codec.decode(tokens);
}

}  // namespace troupe::apps::gpt
