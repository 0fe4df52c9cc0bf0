#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.hpp"

namespace troupe::core {

/// What a load does about keys that only the request or only the checkpoint has.
enum class Strictness : std::uint8_t {
  assume_ok_unexpected,  ///< checks nothing; reading an unexpected key fails by itself
  log_unexpected,        ///< drops unexpected keys and warns
  log_all,               ///< and warns about missing ones
  raise_unexpected,      ///< unexpected keys are an error
  raise_all,             ///< missing ones too
  return_unexpected,     ///< drops unexpected keys and returns them
  return_all,            ///< and returns the missing ones
  ignore_all,            ///< drops unexpected keys silently
};

std::string_view name_of(Strictness strictness) noexcept;
/// Errc::invalid_argument lists the names.
Result<Strictness> strictness_from_name(std::string_view name);

using KeySet = std::set<std::string>;

/// Never compared: every checkpoint has it, no request does.
inline constexpr std::string_view kCommonStateKey = "common_state";

/// What the ranks of a job request. Ranks that keep the same part of a model share a set, so that thousands
/// of ranks cost no more than one of each kind.
struct KeyRequests {
  std::vector<KeySet> sets;
  std::vector<std::vector<std::size_t>> of_ranks;  ///< per rank: the sets of which it requests all keys

  /// The keys in those of `parts` that belong to the rank's sets; `parts` has one for each of the sets.
  KeySet keys_of_rank(std::size_t rank, std::span<const KeySet> parts) const;
};

/// The same for all ranks; each looks up its own part with KeyRequests::keys_of_rank().
struct StrictnessVerdict {
  std::vector<KeySet> dropped;         ///< per set: keys to remove from the requests
  std::optional<std::string> warning;  ///< to be logged once
  std::optional<Error> error;          ///< if set, nothing is read
  std::vector<KeySet> unexpected;      ///< per set, to be returned; empty sets unless the mode returns them
  KeySet missing;                      ///< to be returned

  friend bool operator==(const StrictnessVerdict&, const StrictnessVerdict&) = default;
};

/// Unexpected keys are those of a rank's request that the checkpoint does not have; missing keys are those of
/// the checkpoint that no rank asks for. Messages say "Unexpected keys" with names and ranks and "Missing
/// keys" with names, each only when there are any. Errors are Errc::mismatch.
StrictnessVerdict judge_keys(Strictness strictness, const KeyRequests& requests, const KeySet& checkpoint);

}  // namespace troupe::core
