#pragma once

#include <cstddef>
#include <vector>

#include "actors/session/session.hpp"
#include "apps/gpt/model/config.hpp"
#include "core/experts/tally.hpp"
#include "core/options/options.hpp"
#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::apps::gpt {

// What a session keeps of a model's experts (Session::experts()): loads and biases of routers, of all layers.

/// The model's layers as a session has them; microbatches have up to `tokens` tokens, which a rank may share
/// (ExpertConfig::members). Empty for a model without experts.
std::vector<core::ExpertLayerOptions> expert_layers(const ModelConfig& config, std::size_t tokens);

/// Adds a rank's tokens of the step.
core::Result<void> count_tokens(actors::Session& session, const ModelConfig& config,
                                const core::ExpertTally& step);
/// The choices of all ranks' tokens since the run began.
core::Result<core::ExpertTally> expert_load(actors::Session& session, const ModelConfig& config);
/// Biases of all routers, (layers, experts); layers without experts have zeros.
core::Result<void> read_biases(actors::Session& session, const ModelConfig& config,
                               std::vector<float>& biases);
/// Older checkpoints have loads and biases among their common values instead of as tensors: takes those, if
/// there are any. Errc::mismatch for those of another model.
core::Result<void> take_earlier_state(actors::Session& session, const ModelConfig& config,
                                      const core::Value& common);

}  // namespace troupe::apps::gpt
