#pragma once

#include <cstddef>
#include <cstdint>

#include "apps/gpt/model/expert_config.hpp"

namespace troupe::apps::gpt {

// N rows, C width, E experts, K choices per row, S = N K slots at most, F feed_forward of an expert, G of the
// shared one. R is the most rows that this rank's experts compute with: S if all experts are here, otherwise
// ExpertConfig::most_rows().

/// What the host sends about a layer's choices.
struct ExpertMemory {
  float* weights = nullptr;                ///< (N, K)
  std::int32_t* choice_of_slot = nullptr;  ///< (S)
  std::int32_t* slot_of_choice = nullptr;  ///< (N, K)
  /// (R) each, for grouped products: where a received row goes among theirs, and the reverse.
  std::int32_t* product_of_row = nullptr;
  std::int32_t* row_of_product = nullptr;
};

/// As ExpertActivations.
template <class E>
struct CudaExpertActivations {
  std::size_t layer = 0;
  float* logits = nullptr;  ///< (N, E)
  ExpertMemory sent;
  E* gathered = nullptr;       ///< (S, C); all blocks share it, so backward gathers again
  E* received = nullptr;       ///< (R, C) if experts are distributed over ranks: in the products' order
  E* returned = nullptr;       ///< (R, C) as above, the experts' results; all blocks share it
  E* moved = nullptr;          ///< (R, C) for grouped products: in the order of exchange; all blocks share it
  E* gate = nullptr;           ///< (R, F)
  E* up = nullptr;             ///< (R, F)
  E* hidden = nullptr;         ///< (R, F)
  E* output = nullptr;         ///< (S, C)
  E* shared_gate = nullptr;    ///< (N, G)
  E* shared_up = nullptr;      ///< (N, G)
  E* shared_hidden = nullptr;  ///< (N, G)
  E* shared_output = nullptr;  ///< (N, C)
  E* shared_share = nullptr;   ///< (N), before the sigmoid; null: 1
};

/// As ExpertScratch.
template <class E>
struct CudaExpertScratch {
  E* gathered = nullptr;       ///< (S, C)
  E* slots = nullptr;          ///< (S, C)
  E* rows = nullptr;           ///< (R, C) if experts are distributed over ranks
  E* moved = nullptr;          ///< (R, C) for grouped products
  E* gate = nullptr;           ///< (R, F)
  E* up = nullptr;             ///< (R, F)
  E* hidden = nullptr;         ///< (R, F)
  float* weights = nullptr;    ///< (N, K)
  E* logits = nullptr;         ///< (N, E)
  E* shared_gate = nullptr;    ///< (N, G)
  E* shared_up = nullptr;      ///< (N, G)
  E* shared_hidden = nullptr;  ///< (N, G)
  E* shared_output = nullptr;  ///< (N, C)
  E* shared_share = nullptr;   ///< (N)
};

/// A ByteCarver hands out the pieces.
template <class E, class Carver>
CudaExpertActivations<E> carve_cuda_experts(Carver& carver, std::size_t layer, std::size_t rows,
                                            std::size_t width, const ExpertConfig& config) {
  const std::size_t S = rows * config.choices, F = config.feed_forward, G = config.shared_feed_forward;
  const std::size_t R = config.most_rows(rows);
  const bool is_spread = config.ranks > 1, is_grouped = is_spread && config.grouped;
  const auto shared = [&](std::size_t columns) {
    return G > 0 ? carver.template take<E>(rows, columns) : nullptr;
  };
  return {.layer = layer,
          .logits = carver.template take<float>(rows, config.count),
          .sent = {.weights = carver.template take<float>(S),
                   .choice_of_slot = carver.template take<std::int32_t>(S),
                   .slot_of_choice = carver.template take<std::int32_t>(S),
                   .product_of_row = is_grouped ? carver.template take<std::int32_t>(R) : nullptr,
                   .row_of_product = is_grouped ? carver.template take<std::int32_t>(R) : nullptr},
          .received = is_spread ? carver.template take<E>(R, width) : nullptr,
          .gate = carver.template take<E>(R, F),
          .up = carver.template take<E>(R, F),
          .hidden = carver.template take<E>(R, F),
          .output = carver.template take<E>(S, width),
          .shared_gate = shared(G),
          .shared_up = shared(G),
          .shared_hidden = shared(G),
          .shared_output = shared(width),
          .shared_share = config.shared_gate ? shared(1) : nullptr};
}

template <class E, class Carver>
CudaExpertScratch<E> carve_cuda_expert_scratch(Carver& carver, std::size_t rows, std::size_t width,
                                               const ExpertConfig& config) {
  const std::size_t S = rows * config.choices, F = config.feed_forward, G = config.shared_feed_forward;
  const std::size_t R = config.most_rows(rows);
  const bool is_spread = config.ranks > 1, is_grouped = is_spread && config.grouped;
  const auto shared = [&](std::size_t columns) {
    return G > 0 ? carver.template take<E>(rows, columns) : nullptr;
  };
  return {.gathered = carver.template take<E>(S, width),
          .slots = carver.template take<E>(S, width),
          .rows = is_spread ? carver.template take<E>(R, width) : nullptr,
          .moved = is_grouped ? carver.template take<E>(R, width) : nullptr,
          .gate = carver.template take<E>(R, F),
          .up = carver.template take<E>(R, F),
          .hidden = carver.template take<E>(R, F),
          .weights = carver.template take<float>(S),
          .logits = carver.template take<E>(rows, config.count),
          .shared_gate = shared(G),
          .shared_up = shared(G),
          .shared_hidden = shared(G),
          .shared_output = shared(width),
          .shared_share = config.shared_gate ? shared(1) : nullptr};
}

}  // namespace troupe::apps::gpt
