#pragma once

#include "core/result.hpp"
#include "core/state/state_dict.hpp"
#include "core/state/strictness.hpp"

namespace troupe::core {

/// Replaces every factory by what it builds. Factories may build factories, to a small depth.
Result<StateNode> apply_factories(StateNode root);
/// The inverse: wherever `factories` has a factory, what was loaded there is replaced by what the factory
/// merges it to. Errc::mismatch names a place that was not loaded, and lists whose lengths differ.
Result<StateNode> merge_factories(StateNode loaded, const StateNode& factories);

/// The parts of a state to be saved.
struct SaveParts {
  StateNode sharded;  ///< tensors and objects
  Value common;       ///< all plain values; those of the first rank are stored
};
/// Factories are applied and local values dropped. The root should be a map.
Result<SaveParts> split_for_save(const StateNode& state);

/// The parts of a state to be loaded.
struct LoadParts {
  StateNode sharded;    ///< tensors and objects to read
  StateNode local;      ///< values that stay, unwrapped
  StateNode factories;  ///< in the places of the state
  StateNode structure;  ///< the state itself: where lists are
};
Result<LoadParts> split_for_load(const StateNode& state);

/// Removes tensors and objects with these keys from what is read. A factory that would lack a part is removed
/// with all its parts. Maps and lists that become empty stay.
void drop_keys(LoadParts& parts, const KeySet& keys);

/// The loaded state: the stored common values, the local ones, what was read in place of the request, and
/// what the factories merge from it. Errc::mismatch names a place that two of them claim.
Result<StateNode> join_after_load(const Value& common, StateNode loaded, const LoadParts& parts);

}  // namespace troupe::core
