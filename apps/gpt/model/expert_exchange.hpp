#pragma once

#include <cstddef>
#include <span>

#include "apps/gpt/model/expert_activations.hpp"
#include "apps/gpt/model/expert_config.hpp"
#include "apps/gpt/model/expert_peers.hpp"
#include "core/errors.hpp"
#include "core/experts/dispatch.hpp"
#include "core/experts/exchange.hpp"
#include "core/experts/row_move.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// Tells the others how many slots each expert of the layer has, and says which rows come here: by source,
/// and of each source by expert. `peers` is null where all experts are here: then rows are the slots.
core::Result<void> plan_rows(const ExpertConfig& config, std::size_t layer, ExpertPeers* peers,
                             ExpertRoutes& routes);

/// Moves rows between ranks while `meanwhile` runs.
template <class T, class Work>
core::Result<void> exchange_rows(const RowsOfExchange& rows, const core::RowMove& move, std::size_t width,
                                 ExpertPeers& peers, std::span<const T> from, std::span<T> to,
                                 const Work& meanwhile) {
  TRY(peers.begin_exchange(rows, std::as_bytes(from), std::as_writable_bytes(to), move, width * sizeof(T)));
  TRY(meanwhile());
  return peers.wait();
}

/// For an exchange with nothing beside it.
inline core::Result<void> nothing() {
  return {};
}

}  // namespace troupe::apps::gpt
