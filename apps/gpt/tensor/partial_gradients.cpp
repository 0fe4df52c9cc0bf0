#include "apps/gpt/tensor/partial_gradients.hpp"

#include <algorithm>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

PartialGradients::PartialGradients(const std::vector<std::size_t>& elements) {
  for (const std::size_t count : elements) collected_.emplace_back(count);
}

std::span<float* const> PartialGradients::places(std::span<float* const> gradients) {
  places_.assign(gradients.begin(), gradients.end());
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (!collected_[i].empty()) places_[i] = collected_[i].data();
  }
  return places_;
}

core::Result<void> PartialGradients::finish(std::size_t parameter, TensorGroup<float>& group,
                                            float* gradient) {
  auto& collected = collected_[parameter];
  if (collected.empty()) return {};
  TRY(group.sum(collected));
  for (std::size_t i = 0; i < collected.size(); ++i) gradient[i] += collected[i];
  std::fill(collected.begin(), collected.end(), 0.0F);
  return {};
}

}  // namespace troupe::apps::gpt
