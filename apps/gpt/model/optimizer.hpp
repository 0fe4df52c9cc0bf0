#pragma once

#include <string_view>

#include "core/options/options.hpp"

namespace troupe::apps::gpt {

/// Groups of the session's parameters, if there are any: the matrices of the blocks, and all others.
inline constexpr std::size_t kMatrices = 0;
inline constexpr std::size_t kOthers = 1;

/// How the job steps the model: by "adamw", by "lion" with its own betas, or by "muon", which steps the
/// matrices of the blocks while AdamW steps everything else, at the same learning rate. Weight decay is that
/// of `adam` throughout. Errc::invalid_argument for other names.
core::Result<void> choose_optimizer(core::TrainingOptions& training, std::string_view name,
                                    const core::OptimizerOptions& adam);

}  // namespace troupe::apps::gpt
