#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/ids.hpp"
#include "messages/membership.hpp"

namespace troupe::actors {

/// What an answer holds at most, so that it fits into a message however long the plan is: this many hashes or
/// lines, and this many bytes of each line.
inline constexpr std::uint64_t kPlanFanOut = 256;
inline constexpr std::size_t kPlanLineBytes = 2000;

/// A rank's two answers to PlanPartWanted: hashes of blocks, and for blocks of one line the lines themselves.
/// The part cut off a long line is replaced by its hash, so that different lines stay different.
messages::PlanHashes plan_hashes(core::Rank rank, const std::vector<std::string>& plan,
                                 const messages::PlanPartWanted& wanted);
messages::PlanLines plan_lines(core::Rank rank, const std::vector<std::string>& plan,
                               const messages::PlanPartWanted& wanted);

/// The end of a sentence: where two texts first differ, the first lines of both having number `first`.
std::string first_difference(const std::vector<std::string>& ours, const std::vector<std::string>& theirs,
                             std::uint64_t first = 0);

/// Finds the first line in which the plans of two ranks differ, without sending either plan: both ranks hash
/// blocks of their lines, and the first block that differs is cut into smaller ones, down to single lines.
class PlanSearch {
 public:
  PlanSearch(core::Rank ours, core::Rank theirs) : ranks_{ours, theirs} {}

  const std::array<core::Rank, 2>& ranks() const { return ranks_; }
  /// What both ranks are to be asked now.
  const messages::PlanPartWanted& wanted() const { return wanted_; }
  /// True when both have answered and must be asked again.
  bool add(const messages::PlanHashes& answer);
  /// The difference as the end of a sentence, when both have answered.
  std::optional<std::string> add(const messages::PlanLines& answer);

 private:
  bool is_asked(core::Rank rank) const { return rank == ranks_[0] || rank == ranks_[1]; }

  std::array<core::Rank, 2> ranks_;
  /// The first blocks, as many as an answer holds, cover more lines than any plan has.
  messages::PlanPartWanted wanted_{0, kPlanFanOut* kPlanFanOut* kPlanFanOut};
  std::map<core::Rank, messages::PlanHashes> hashes_;
  std::map<core::Rank, messages::PlanLines> lines_;
};

}  // namespace troupe::actors
