#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/experts/dispatch.hpp"
#include "core/experts/exchange.hpp"

namespace troupe::core {

/// What an exchange moves between the memories of a group's ranks: rows of this rank's input to each rank,
/// and rows of its output from each. Lists say which rows, in rank order; none: all, in memory order.
struct RowMove {
  std::vector<std::int64_t> sent;   ///< rows to each rank
  std::vector<std::int64_t> taken;  ///< rows from each
  std::optional<std::vector<std::int64_t>> input;
  std::optional<std::vector<std::int64_t>> output;

  friend bool operator==(const RowMove&, const RowMove&) = default;
};

/// Moves the rows of tokens to the products of their experts, on all ranks. The exchange reads each row
/// directly from its token, so rows need not be put in slot order first. `choices` is K.
RowMove tokens_to_products(const Dispatch& dispatch, std::size_t choices, const ExpertExchange& exchange);

/// Where this rank's products find the rows of its own tokens: the slots of its own experts, in their order.
struct OwnRows {
  std::int64_t first_slot = 0;
  std::int64_t first_received = 0;
  std::int64_t count = 0;
};
OwnRows own_rows(const ExpertOwners& owners, std::size_t rank, const Dispatch& dispatch,
                 const ExpertExchange& exchange);

/// Moves slots to products. Own rows stay in their slots, where products read and write them; only where
/// products are grouped are they moved with all others.
RowMove slots_to_products(const OwnRows& own, std::size_t rank, const ExpertExchange& exchange);
/// The reverse.
RowMove products_to_slots(const OwnRows& own, std::size_t rank, const ExpertExchange& exchange);

}  // namespace troupe::core
