#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "apps/gpt/tensor/group.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// Finishes the gradients of parameters that are also the sum over a group (also_sum). They are
/// collected beside those of the session over the microbatches of a lane, and enter them once per lane, as
/// the sum of what the members collected: the lane's gradient is then the same on all of them, and all that
/// follows, the sum over lanes and ranks, is as of any other parameter.
class PartialGradients {
 public:
  /// Of each parameter its elements, or 0 where its gradient is not to be summed.
  explicit PartialGradients(const std::vector<std::size_t>& elements);

  /// Where a pass adds: the given places, but of the parameters to be summed ours.
  std::span<float* const> places(std::span<float* const> gradients);
  /// The lane's gradient of the parameter is complete here. Adds the sum over the group to `gradient`, and
  /// begins the next lane with zeros. Nothing for a parameter that is not to be summed.
  core::Result<void> finish(std::size_t parameter, TensorGroup<float>& group, float* gradient);

 private:
  std::vector<std::vector<float>> collected_;  // by parameter; empty: it is not to be summed
  std::vector<float*> places_;
};

}  // namespace troupe::apps::gpt
