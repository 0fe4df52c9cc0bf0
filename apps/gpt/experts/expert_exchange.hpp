#pragma once

#include <cstddef>

#include "apps/gpt/experts/expert_config.hpp"
#include "apps/gpt/experts/expert_peers.hpp"
#include "core/experts/dispatch.hpp"
#include "core/experts/exchange.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// Tells the others how many slots each expert has, and says which rows come here: by source, and of each
/// source by expert. `peers` is null where all experts are here: then rows are the slots.
/// Errc::out_of_memory for more than ExpertConfig::most_rows(). `rows` are the tokens of each rank.
core::Result<core::ExpertExchange> plan_rows(const ExpertConfig& config, std::size_t rows,
                                             const core::Dispatch& dispatch, ExpertPeers* peers);

}  // namespace troupe::apps::gpt
