#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "apps/gpt/model/expert_config.hpp"
#include "core/experts/decision.hpp"
#include "core/experts/exchange.hpp"
#include "core/experts/row_move.hpp"

namespace troupe::apps::gpt {

// N rows, C width, E experts, K choices of a row, or parts of experts that these are (ExpertConfig::sent()),
// S = N K slots at most, F feed_forward of an expert, G of
// the shared one. R rows that this rank's experts compute with at most: S where all experts are here, else
// ExpertConfig::most_rows().

/// Where the rows of a layer went in forward. Of ranks that share sequences each has its own rows here.
struct ExpertRoutes : core::RouterDecision {
  std::uint64_t number = 0;       ///< of the exchange, where experts are distributed over ranks
  core::ExpertExchange exchange;  ///< of the slots' rows with the ranks of their experts
  core::OwnRows own;              ///< where experts are distributed over ranks
};

/// What the experts of a block leave for backward.
template <class T>
struct ExpertActivations {
  ExpertRoutes* routes = nullptr;
  std::size_t layer = 0;       ///< of the model, whose biases its router has
  T* logits = nullptr;         ///< (N, E)
  T* weights = nullptr;        ///< (N, K)
  T* gathered = nullptr;       ///< (S, C) rows by expert, of experts that are all here; all blocks share it
  T* received = nullptr;       ///< (R, C) rows of all ranks, where experts are distributed over them
  T* returned = nullptr;       ///< (R, C) as above, what the experts make of them; all blocks share it
  T* gate = nullptr;           ///< (R, F)
  T* up = nullptr;             ///< (R, F)
  T* hidden = nullptr;         ///< (R, F)
  T* output = nullptr;         ///< (S, C) of the experts, not weighed yet
  T* shared_gate = nullptr;    ///< (N, G)
  T* shared_up = nullptr;      ///< (N, G)
  T* shared_hidden = nullptr;  ///< (N, G)
  T* shared_output = nullptr;  ///< (N, C)
  T* shared_share = nullptr;   ///< (N) what the shared expert's output is multiplied by
};

/// Gradients in flight; all blocks share them.
template <class T>
struct ExpertScratch {
  T* gathered = nullptr;       ///< (S, C) as ExpertActivations; backward gathers again
  T* slots = nullptr;          ///< (S, C)
  T* rows = nullptr;           ///< (R, C) where experts are distributed over ranks
  T* gate = nullptr;           ///< (R, F)
  T* up = nullptr;             ///< (R, F)
  T* hidden = nullptr;         ///< (R, F)
  T* weights = nullptr;        ///< (N, K)
  T* logits = nullptr;         ///< (N, E)
  T* shared_gate = nullptr;    ///< (N, G)
  T* shared_up = nullptr;      ///< (N, G)
  T* shared_hidden = nullptr;  ///< (N, G)
  T* shared_output = nullptr;  ///< (N, C)
  T* shared_share = nullptr;   ///< (N)
};

/// A Carver hands out pieces; see activations.hpp.
template <class T, class Carver>
ExpertActivations<T> carve_experts(Carver& carver, std::size_t rows, std::size_t width,
                                   const ExpertConfig& config) {
  const std::size_t S = rows * config.sent(), F = config.feed_forward, G = config.shared_feed_forward;
  const std::size_t R = config.most_rows(rows);
  const bool shares = G > 0, is_spread = config.ranks > 1;
  const auto shared = [&](std::size_t columns) { return shares ? carver.take(rows, columns) : nullptr; };
  return {.logits = carver.take(rows, config.count),
          .weights = carver.take(rows, config.sent()),
          .received = is_spread ? carver.take(R, width) : nullptr,
          .gate = carver.take(R, F),
          .up = carver.take(R, F),
          .hidden = carver.take(R, F),
          .output = carver.take(S, width),
          .shared_gate = shared(G),
          .shared_up = shared(G),
          .shared_hidden = shared(G),
          .shared_output = shared(width),
          .shared_share = config.shared_gate ? shared(1) : nullptr};
}

template <class T, class Carver>
ExpertScratch<T> carve_expert_scratch(Carver& carver, std::size_t rows, std::size_t width,
                                      const ExpertConfig& config) {
  const std::size_t S = rows * config.sent(), F = config.feed_forward, G = config.shared_feed_forward;
  const std::size_t R = config.most_rows(rows);
  const bool shares = G > 0, is_spread = config.ranks > 1;
  const auto shared = [&](std::size_t columns) { return shares ? carver.take(rows, columns) : nullptr; };
  return {.gathered = is_spread ? nullptr : carver.take(S, width),
          .slots = carver.take(S, width),
          .rows = is_spread ? carver.take(R, width) : nullptr,
          .gate = carver.take(R, F),
          .up = carver.take(R, F),
          .hidden = carver.take(R, F),
          .weights = carver.take(rows, config.sent()),
          .logits = carver.take(rows, config.count),
          .shared_gate = shared(G),
          .shared_up = shared(G),
          .shared_hidden = shared(G),
          .shared_output = shared(width),
          .shared_share = config.shared_gate ? shared(1) : nullptr};
}

}  // namespace troupe::apps::gpt
