#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "apps/gpt/model/carver.hpp"
#include "apps/gpt/model/element.hpp"
#include "apps/gpt/model/expert_config.hpp"
#include "core/experts/decision.hpp"
#include "core/experts/exchange.hpp"
#include "core/experts/row_move.hpp"

namespace troupe::apps::gpt {

// N rows, C width, E experts, K choices of a row, or parts of experts that these are (ExpertConfig::sent()),
// S = N K slots at most, F feed_forward of an expert, G of the shared one. R is the most rows that this
// rank's experts compute with: S if all experts are here, otherwise ExpertConfig::most_rows().

/// Where the rows of a layer went in forward. Ranks that share sequences each have their own rows here.
struct ExpertRoutes : core::RouterDecision {
  std::uint64_t number = 0;       ///< of the exchange, where experts are distributed over ranks
  core::ExpertExchange exchange;  ///< of the slots' rows with the ranks of their experts
  core::OwnRows own;              ///< where experts are distributed over ranks
};

/// What was chosen for the rows of a layer, in the memory that it computes in. On the host the routes have
/// the places.
template <class S>
struct ExpertChoices {
  S* weights = nullptr;                    ///< (N, K)
  std::int32_t* choice_of_slot = nullptr;  ///< (S)
  std::int32_t* slot_of_choice = nullptr;  ///< (N, K)
  std::int32_t* experts = nullptr;         ///< (N, choices)
  std::int32_t* counts = nullptr;  ///< (E) choices of the whole microbatch, if there is a balance loss
  /// (R) each, for grouped products: where a received row goes among theirs, and the reverse.
  std::int32_t* product_of_row = nullptr;
  std::int32_t* row_of_product = nullptr;
};

/// What the experts of a block leave for backward.
template <class E>
struct ExpertActivations {
  ExpertRoutes* routes = nullptr;
  std::size_t layer = 0;       ///< of the model, whose biases its router has
  SumOf<E>* logits = nullptr;  ///< (N, E)
  ExpertChoices<SumOf<E>> sent{};
  E* gathered = nullptr;     ///< (S, C) rows by expert, if all experts are here; all blocks share it
  E* received = nullptr;     ///< (R, C) rows of all ranks, if experts are distributed over them
  E* returned = nullptr;     ///< (R, slices, C) as above, the experts' results; all blocks share it
  E* moved = nullptr;        ///< (R, C) on a GPU for grouped products: in the order of exchange; shared, too
  E* gate = nullptr;         ///< (R, F)
  E* up = nullptr;           ///< (R, F)
  E* hidden = nullptr;       ///< (R, F)
  E* output = nullptr;       ///< (S, slices, C) of the experts, not weighed yet
  E* shared_gate = nullptr;  ///< (N, G)
  E* shared_up = nullptr;    ///< (N, G)
  E* shared_hidden = nullptr;  ///< (N, G)
  E* shared_output = nullptr;  ///< (N, slices, C)
  E* shared_share = nullptr;   ///< (N), before the sigmoid; null: 1
};

/// Gradients in flight; all blocks share them.
template <class E>
struct ExpertScratch {
  E* gathered = nullptr;        ///< (S, C) as ExpertActivations; backward gathers again
  E* slots = nullptr;           ///< (S, slices, C)
  E* d_slots = nullptr;         ///< (S, C), with respect to outputs; the same memory if there is one slice
  E* rows = nullptr;            ///< (R, slices, C) if experts are distributed over ranks
  E* d_rows = nullptr;          ///< (R, C) as d_slots
  E* moved = nullptr;           ///< (R, C) as ExpertActivations
  E* gate = nullptr;            ///< (R, F)
  E* up = nullptr;              ///< (R, F)
  E* hidden = nullptr;          ///< (R, F)
  SumOf<E>* weights = nullptr;  ///< (N, K)
  E* logits = nullptr;          ///< (N, E)
  E* shared_gate = nullptr;     ///< (N, G)
  E* shared_up = nullptr;       ///< (N, G)
  E* shared_hidden = nullptr;   ///< (N, G)
  E* shared_output = nullptr;   ///< (N, C)
  E* shared_share = nullptr;    ///< (N)
};

/// X is the engine that computes with them (apps/gpt/model/host_engine.hpp).
template <class X>
auto carve_experts(Carver& carver, std::size_t rows, std::size_t width, const ExpertConfig& config,
                   std::size_t slices = 1) {
  using E = typename X::Element;
  const std::size_t S = rows * config.sent(), F = config.feed_forward, G = config.shared_feed_forward;
  const std::size_t R = config.most_rows(rows);
  const bool is_spread = config.ranks > 1, is_grouped = X::kIsDevice && is_spread && config.grouped;
  const auto shared = [&](std::size_t columns) { return G > 0 ? carver.take<E>(rows, columns) : nullptr; };
  const auto places = [&](bool has, std::size_t count) {
    return has ? carver.take<std::int32_t>(count) : nullptr;
  };
  ExpertActivations<E> layer;
  layer.logits = carver.take<SumOf<E>>(rows, config.count);
  layer.sent = {.weights = carver.take<SumOf<E>>(S),
                .choice_of_slot = places(X::kIsDevice, S),
                .slot_of_choice = places(X::kIsDevice, S),
                .experts = places(X::kIsDevice, rows * config.choices),
                .counts = places(X::kIsDevice, config.count),
                .product_of_row = places(is_grouped, R),
                .row_of_product = places(is_grouped, R)};
  layer.received = is_spread ? carver.take<E>(R, width) : nullptr;
  layer.gate = carver.take<E>(R, F);
  layer.up = carver.take<E>(R, F);
  layer.hidden = carver.take<E>(R, F);
  layer.output = carver.take<E>(S, slices * width);
  layer.shared_gate = shared(G);
  layer.shared_up = shared(G);
  layer.shared_hidden = shared(G);
  layer.shared_output = shared(slices * width);
  layer.shared_share = config.shared_gate ? shared(1) : nullptr;
  return layer;
}

template <class X>
auto carve_expert_scratch(Carver& carver, std::size_t rows, std::size_t width, const ExpertConfig& config,
                          std::size_t slices) {
  using E = typename X::Element;
  const std::size_t S = rows * config.sent(), F = config.feed_forward, G = config.shared_feed_forward;
  const std::size_t R = config.most_rows(rows);
  const bool is_spread = config.ranks > 1, is_grouped = X::kIsDevice && is_spread && config.grouped;
  const auto shared = [&](std::size_t columns) { return G > 0 ? carver.take<E>(rows, columns) : nullptr; };
  ExpertScratch<E> scratch;
  scratch.gathered = is_spread && !X::kIsDevice ? nullptr : carver.take<E>(S, width);
  scratch.slots = carver.take<E>(S, slices * width);
  scratch.d_slots = slices == 1 ? scratch.slots : carver.take<E>(S, width);
  scratch.rows = is_spread ? carver.take<E>(R, slices * width) : nullptr;
  scratch.d_rows = slices == 1 || !is_spread ? scratch.rows : carver.take<E>(R, width);
  scratch.moved = is_grouped ? carver.take<E>(R, width) : nullptr;
  scratch.gate = carver.take<E>(R, F);
  scratch.up = carver.take<E>(R, F);
  scratch.hidden = carver.take<E>(R, F);
  scratch.weights = carver.take<SumOf<E>>(S);
  scratch.logits = carver.take<E>(rows, config.count);
  scratch.shared_gate = shared(G);
  scratch.shared_up = shared(G);
  scratch.shared_hidden = shared(G);
  scratch.shared_output = shared(width);
  scratch.shared_share = config.shared_gate ? shared(1) : nullptr;
  return scratch;
}

}  // namespace troupe::apps::gpt
