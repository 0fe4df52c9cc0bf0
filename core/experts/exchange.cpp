#include "core/experts/exchange.hpp"

#include <algorithm>
#include <numeric>

#include "core/errors.hpp"
#include "core/experts/dispatch.hpp"

namespace troupe::core {

Result<ExpertOwners> ExpertOwners::create(std::size_t experts, std::size_t ranks) {
  if (ranks < 1 || experts < 1 || experts % ranks != 0)
    return fail(Errc::invalid_argument,
                "{} experts cannot be owned by {} ranks alike; choose an expert parallel size that divides "
                "them",
                experts, ranks);
  return ExpertOwners{experts, ranks};
}

Result<ExpertSpread> ExpertSpread::create(const ExpertSpread& spread) {
  if (spread.parts < 1 || spread.ranks % spread.parts != 0)
    return fail(Errc::invalid_argument,
                "{} parts of each expert cannot be on {} ranks alike; choose as many as divide them",
                spread.parts, spread.ranks);
  TRY(ExpertOwners::create(spread.experts, spread.ranks / spread.parts * spread.columns));
  return spread;
}

Dispatch dispatch_of_parts(const ExpertSpread& spread, const Dispatch& whole) {
  if (spread.parts == 1 && spread.columns == 1) return whole;
  const auto parts = static_cast<std::int64_t>(spread.parts);
  Dispatch found;
  found.first_slot = {0};
  found.slot_of_choice.assign(whole.slot_of_choice.size() * spread.parts, Dispatch::kDropped);
  for (std::size_t rank = 0; rank < spread.ranks; ++rank) {
    const auto part = static_cast<std::int64_t>(rank % spread.parts);
    for (std::size_t expert = spread.first(rank); expert < spread.first(rank) + spread.per_rank(); ++expert) {
      for (auto slot = whole.first_slot[expert]; slot < whole.first_slot[expert + 1]; ++slot) {
        const auto choice = whole.choice_of_slot[static_cast<std::size_t>(slot)] * parts + part;
        found.slot_of_choice[static_cast<std::size_t>(choice)] =
            static_cast<std::int64_t>(found.choice_of_slot.size());
        found.choice_of_slot.push_back(choice);
      }
      found.first_slot.push_back(static_cast<std::int64_t>(found.choice_of_slot.size()));
      found.dropped.push_back(part == 0 ? whole.dropped[expert] : 0);
    }
  }
  return found;
}

Result<std::int64_t> most_expert_rows(const ExpertSpread& spread, const RoutedTokens& routed) {
  const auto& [tokens, choices, members, members_of_rank, capacity_factor] = routed;
  // Those of the group that have the same microbatch.
  const std::size_t together = std::min(spread.ranks, members / members_of_rank);
  auto most = static_cast<std::int64_t>(together * tokens * choices);
  if (capacity_factor) {
    const auto capacity = TRY(expert_capacity(static_cast<std::int64_t>(members * tokens), choices,
                                              spread.experts, *capacity_factor));
    // A rank that has all experts computes in its slots, and has as many of these as choices.
    if (spread.ranks > 1) most = std::min(most, static_cast<std::int64_t>(spread.per_rank()) * capacity);
  }
  return most * static_cast<std::int64_t>(spread.ranks / together);
}

std::int64_t ExpertExchange::received_rows() const {
  return std::accumulate(received.begin(), received.end(), std::int64_t{0});
}

namespace {

Result<void> check_counts(const ExpertOwners& owners, std::span<const std::vector<std::int64_t>> slots_of) {
  if (slots_of.size() != owners.ranks)
    return fail(Errc::invalid_argument, "expected the counts of {} ranks, found those of {}", owners.ranks,
                slots_of.size());
  for (std::size_t rank = 0; rank < slots_of.size(); ++rank) {
    const auto& counts = slots_of[rank];
    if (counts.size() != owners.experts)
      return fail(Errc::invalid_argument, "expected counts of {} experts, rank {} of the group has {}",
                  owners.experts, rank, counts.size());
    const auto negative =
        std::find_if(counts.begin(), counts.end(), [](std::int64_t count) { return count < 0; });
    if (negative != counts.end())
      return fail(Errc::invalid_argument, "rank {} of the group counts {} slots of expert {}", rank,
                  *negative, negative - counts.begin());
  }
  return {};
}

std::int64_t rows_for(const ExpertOwners& owners, std::size_t owner,
                      const std::vector<std::int64_t>& counts) {
  const auto first = counts.begin() + static_cast<std::ptrdiff_t>(owners.first(owner));
  return std::accumulate(first, first + static_cast<std::ptrdiff_t>(owners.per_rank()), std::int64_t{0});
}

}  // namespace

Result<ExpertExchange> plan_exchange(const ExpertOwners& owners, std::size_t rank,
                                     std::span<const std::vector<std::int64_t>> slots_of,
                                     std::int64_t most_rows) {
  CHECK(rank < owners.ranks, "the rank is one of the group");
  TRY(check_counts(owners, slots_of));
  ExpertExchange exchange;
  exchange.products.resize(owners.per_rank());
  std::int64_t row = 0;
  for (std::size_t other = 0; other < owners.ranks; ++other) {
    exchange.sent.push_back(rows_for(owners, other, slots_of[rank]));
    exchange.received.push_back(rows_for(owners, rank, slots_of[other]));
    for (std::size_t own = 0; own < owners.per_rank(); ++own) {
      const std::int64_t count = slots_of[other][owners.first(rank) + own];
      exchange.products[own].push_back({other, row, count});
      row += count;
    }
  }
  if (row > most_rows)
    return fail(
        Errc::out_of_memory,
        "rank {} of the expert group would receive {} rows ({} from each), there is room for {}; use a "
        "smaller microbatch, or a capacity",
        rank, row, fmt::format("{}", fmt::join(exchange.received, ", ")), most_rows);
  return exchange;
}

ExpertExchange exchange_alone(const Dispatch& dispatch) {
  const std::vector<std::vector<std::int64_t>> counts{dispatch.counts()};
  auto exchange = plan_exchange({dispatch.experts(), 1}, 0, counts, dispatch.slots());
  CHECK(exchange.has_value(), "there is room for the slots of a dispatch, which counts every expert");
  return *std::move(exchange);
}

Result<ExpertExchange> plan_without_others(const ExpertOwners& owners, std::size_t rank, std::size_t together,
                                           const Dispatch& dispatch, std::int64_t most_rows) {
  std::vector counts(owners.ranks, std::vector<std::int64_t>(dispatch.experts()));
  for (std::size_t other = rank % together; other < counts.size(); other += together)
    counts[other] = dispatch.counts();
  return plan_exchange(owners, rank, counts, most_rows);
}

void group_rows(ExpertExchange& exchange) {
  auto& places = exchange.grouped.emplace(static_cast<std::size_t>(exchange.received_rows()));
  std::int64_t next = 0;
  for (auto& parts : exchange.products) {
    ExpertRows all{.source = 0, .first = next, .count = 0};
    for (const ExpertRows& part : parts) {
      const auto first = places.begin() + static_cast<std::ptrdiff_t>(part.first);
      std::iota(first, first + static_cast<std::ptrdiff_t>(part.count), next);
      next += part.count;
      all.count += part.count;
    }
    parts = {all};
  }
}

}  // namespace troupe::core
