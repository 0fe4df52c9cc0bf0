#include "core/experts/row_move.hpp"

#include <numeric>
#include <utility>

namespace troupe::core {

namespace {

/// All of `rows` except `count` from `first` on.
std::vector<std::int64_t> all_but(std::int64_t rows, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> list(static_cast<std::size_t>(rows - count));
  const auto before = list.begin() + static_cast<std::ptrdiff_t>(first);
  std::iota(list.begin(), before, std::int64_t{0});
  std::iota(before, list.end(), first + count);
  return list;
}

std::int64_t total(const std::vector<std::int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

}  // namespace

RowMove tokens_to_products(const Dispatch& dispatch, std::size_t choices, const ExpertExchange& exchange) {
  std::vector<std::int64_t> tokens;
  tokens.reserve(dispatch.choice_of_slot.size());
  for (const std::int64_t choice : dispatch.choice_of_slot)
    tokens.push_back(choice / static_cast<std::int64_t>(choices));
  return {exchange.sent, exchange.received, std::move(tokens), exchange.grouped};
}

OwnRows own_rows(const ExpertOwners& owners, std::size_t rank, const Dispatch& dispatch,
                 const ExpertExchange& exchange) {
  const auto own = exchange.received.begin() + static_cast<std::ptrdiff_t>(rank);
  return {.first_slot = dispatch.first_slot[owners.first(rank)],
          .first_received = std::accumulate(exchange.received.begin(), own, std::int64_t{0}),
          .count = *own};
}

RowMove slots_to_products(const OwnRows& own, std::size_t rank, const ExpertExchange& exchange) {
  RowMove move{exchange.sent, exchange.received, std::nullopt, exchange.grouped};
  if (exchange.grouped) return move;
  move.input = all_but(total(exchange.sent), own.first_slot, own.count);
  move.output = all_but(total(exchange.received), own.first_received, own.count);
  move.sent[rank] = move.taken[rank] = 0;
  return move;
}

RowMove products_to_slots(const OwnRows& own, std::size_t rank, const ExpertExchange& exchange) {
  RowMove move = slots_to_products(own, rank, exchange);
  std::swap(move.sent, move.taken);
  std::swap(move.input, move.output);
  return move;
}

}  // namespace troupe::core
