#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "apps/gpt/experts/expert_config.hpp"
#include "apps/gpt/experts/expert_peers.hpp"
#include "core/experts/dispatch.hpp"
#include "core/experts/exchange.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

// S slots of this rank, R rows that its experts compute with, C width.

/// Tells the others how many slots each expert has, and says which rows come here: by source, and of each
/// source by expert. `peers` is null where all experts are here: then rows are the slots.
/// Errc::out_of_memory for more than ExpertConfig::most_rows(). `rows` are the tokens of each rank.
core::Result<core::ExpertExchange> plan_rows(const ExpertConfig& config, std::size_t rows,
                                             const core::Dispatch& dispatch, ExpertPeers* peers);

/// Begins to bring `slots` (S, C) to the ranks of their experts, as `rows` (R, C) there; over with
/// ExpertPeers::wait().
template <class T>
core::Result<void> send_rows(const core::ExpertExchange& exchange, std::size_t width, ExpertPeers& peers,
                             const T* slots, T* rows);
/// Likewise the way back: `rows` (R, C) to the slots they came from.
template <class T>
core::Result<void> return_rows(const core::ExpertExchange& exchange, std::size_t width, ExpertPeers& peers,
                               const T* rows, T* slots);

/// Rows of an expert together, whichever rank they are of: the products that the exchange then has are one
/// for each expert. Returns which received row each of the grouped ones is.
std::vector<std::int64_t> group_rows(core::ExpertExchange& exchange);
/// Row i of `to` is row order[i] of `from`, or the other way round.
template <class T>
void order_rows(std::span<const std::int64_t> order, std::size_t width, const T* from, T* to);
template <class T>
void restore_rows(std::span<const std::int64_t> order, std::size_t width, const T* from, T* to);

}  // namespace troupe::apps::gpt
