#pragma once

#include <cstddef>
#include <optional>

#include "apps/command_line/app.hpp"
#include "apps/gpt/model/config.hpp"
#include "core/options/options.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// What the command line says of experts.
struct ExpertOptions {
  std::size_t count = 0;
  std::size_t choices = 2;
  std::size_t feed_forward = 0;   ///< 0: as the MLP would have
  std::optional<double> balance;  ///< none: kDefaultBalance for a preset, 0 for a model that was begun from
  double bias_rate = 0;           ///< above 0: balance without a loss
  double z_loss = 0;
  std::optional<double> capacity_factor;
};

/// The coefficient that Mixtral and Switch Transformers were trained with.
inline constexpr double kDefaultBalance = 0.01;

/// Puts them into a model, whose own experts `is_begun` from a directory stay. Errc::invalid_argument for
/// what such a model says itself, and for losses of routers that a model does not have.
core::Result<void> apply_expert_options(const ExpertOptions& options, bool is_begun, ModelConfig& config);

/// Errc::invalid_argument for numbers of ranks that cannot share the model's experts, or a run without ranks.
core::Result<void> check_expert_ranks(const core::TrainingOptions& training, const ModelConfig& config,
                                      bool is_local);

}  // namespace troupe::apps::gpt
