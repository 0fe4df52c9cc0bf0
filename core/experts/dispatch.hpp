#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/result.hpp"

namespace troupe::core {

// N tokens, E experts, K choices per token, C width, S slots.

/// Which choices are kept by an expert that was chosen by more tokens than it has room for.
enum class DropPolicy : std::uint8_t {
  position,     ///< those of the first tokens
  probability,  ///< those with the greatest weights; the first tokens win ties
};

/// ceil(tokens * choices / experts * factor), as Megatron-Core's get_capacity(). Errc::invalid_argument
/// unless the factor is above 0.
Result<std::int64_t> expert_capacity(std::int64_t tokens, std::size_t choices, std::size_t experts,
                                     double factor);

/// Where the choices of tokens go: to slots, ordered by expert, and within an expert by token.
struct Dispatch {
  static constexpr std::int64_t kDropped = -1;

  std::vector<std::int64_t> first_slot;      ///< (E + 1): expert e has the slots from [e] to [e + 1]
  std::vector<std::int64_t> choice_of_slot;  ///< (S): token * K + choice
  std::vector<std::int64_t> slot_of_choice;  ///< (N K): kDropped where the expert had no room
  std::vector<std::int64_t> dropped;         ///< (E)

  std::size_t experts() const { return dropped.size(); }
  std::int64_t slots() const { return first_slot.back(); }
  std::int64_t count(std::size_t expert) const { return first_slot[expert + 1] - first_slot[expert]; }
  std::vector<std::int64_t> counts() const;  ///< (E): of slots
  std::vector<std::int64_t> chosen() const;  ///< (E): of choices, whether they were dropped or not
};

/// Without a capacity nothing is dropped. `experts` and `weights` are (N, K); only the policy `probability`
/// uses the weights. A token loses the contribution of a dropped choice: its other weights are not raised.
template <class T>
Dispatch dispatch(std::size_t expert_count, std::span<const std::int32_t> experts, std::span<const T> weights,
                  std::optional<std::int64_t> capacity = {}, DropPolicy policy = DropPolicy::probability);

/// The part of all tokens' dispatch that concerns some of them: `tokens` are their indices among all, in
/// rising order, and `experts` is theirs, (N, K). One that is not among all has no slots and is not counted.
Dispatch dispatch_of_some(const Dispatch& all, std::size_t choices, std::span<const std::size_t> tokens,
                          std::span<const std::int32_t> experts);

// The experts' products read the rows of `slots` (S, C). `choices` is K, `width` is C.

/// slots = the rows of their tokens.
template <class T>
void gather_tokens(const Dispatch& dispatch, std::size_t choices, std::size_t width,
                   std::span<const T> tokens, std::span<T> slots);

/// Adds the rows of the slots to those of their tokens, for each token starting with its best choice.
template <class T>
void gather_tokens_backward(const Dispatch& dispatch, std::size_t choices, std::size_t width,
                            std::span<const T> d_slots, std::span<T> d_tokens);

/// tokens += weight * row of the slot, for each token starting with its best choice; so a token's sum depends
/// neither on where its experts are, nor on other tokens.
template <class T>
void combine(const Dispatch& dispatch, std::size_t choices, std::size_t width, std::span<const T> weights,
             std::span<const T> slots, std::span<T> tokens);

/// d_slots = weight * row of the token; d_weights = the dot product of both rows, summed in double from the
/// first column on, 0 for dropped choices.
template <class T>
void combine_backward(const Dispatch& dispatch, std::size_t choices, std::size_t width,
                      std::span<const T> weights, std::span<const T> slots, std::span<const T> d_tokens,
                      std::span<T> d_slots, std::span<T> d_weights);

}  // namespace troupe::core
