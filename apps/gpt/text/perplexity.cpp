#include "apps/gpt/text/perplexity.hpp"

#include <cmath>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

core::Result<Perplexity> perplexity(const TokenText& text, BatchShape shape, const BatchLoss& loss) {
  Batch batch(shape);
  Perplexity result;
  double sum = 0;
  const std::size_t count = sequences_in_order(text, shape.length);
  for (std::size_t first = 0; first < count; first += shape.batch) {
    const std::size_t learned = batch.fill_in_order(text, first);
    if (learned == 0) continue;
    sum += TRY(loss(batch.tokens(), batch.targets())) * static_cast<double>(learned);
    result.tokens += learned;
  }
  if (result.tokens == 0)
    return core::fail(core::Errc::invalid_argument,
                      "the text has no token that is learned; give a longer one");
  result.loss = sum / static_cast<double>(result.tokens);
  result.perplexity = std::exp(result.loss);
  return result;
}

}  // namespace troupe::apps::gpt
