#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "apps/gpt/experts/expert_config.hpp"
#include "apps/gpt/experts/expert_tally.hpp"
#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::apps::gpt {

/// What the routers of all layers add to their scores to choose experts, and not to weigh them: balancing
/// without a loss (core::update_expert_bias()). No parameter: nobody reduces it, every rank comes to the same
/// from the same counts.
class RouterBias {
 public:
  /// Zeros. Errc::invalid_argument for more than a checkpoint keeps.
  static core::Result<RouterBias> create(const ExpertConfig& config, std::size_t layers);

  /// (layers, experts), as ExpertConfig::biases; layers without experts keep zeros.
  std::shared_ptr<const std::vector<float>> values() const { return values_; }
  /// Once for each committed step, by the counts of all its tokens on all ranks; no pass runs meanwhile.
  void update(const ExpertTally& step);

  /// As checkpoints keep it. One of another model is Errc::mismatch.
  core::Value value() const;
  core::Result<void> set_value(const core::Value& value);

 private:
  RouterBias(double rate, std::size_t layers, std::size_t experts);

  double rate_;
  std::size_t experts_;
  // The trainer changes it, the models of its rank read it.
  std::shared_ptr<std::vector<float>> values_;
};

}  // namespace troupe::apps::gpt
