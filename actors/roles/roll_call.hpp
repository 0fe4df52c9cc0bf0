#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/ids.hpp"
#include "messages/calls.hpp"
#include "messages/step.hpp"

namespace troupe::actors {

/// What all ranks must have called alike, compared; for the Coordinator.
class RollCall {
 public:
  explicit RollCall(core::WorldSize world) : world_(world) {}

  void add(const messages::TrainerCalls& calls);
  /// Set if no rank can go on: each waits for one that waits itself. A rank that waits calls nothing, and
  /// what it has called never becomes less, so this is true even if the news of a rank is old.
  std::optional<std::string> deadlock() const;
  /// Ranks that have waited in a call, and those that have not made it; empty for what was returned before,
  /// and for steps, which ranks begin when they are ready.
  std::string news();

 private:
  std::string describe(core::Rank rank) const;
  std::vector<std::int32_t> missing(const messages::TrainerCalls& own) const;

  core::WorldSize world_;
  bool is_blocked(const messages::TrainerCalls& own) const;

  std::map<core::Rank, messages::TrainerCalls> last_;  ///< of those that have told anything
  std::set<std::tuple<core::Rank, messages::Call, std::uint64_t>> told_;
};

/// Why a step is not committed, from the accounts of all ranks: the first thing in which they differ, with
/// what each has, or what the ranks that refuse it say. It fits into a message, however many ranks there are.
std::string reason_of(const std::map<core::Rank, messages::StepAccount>& accounts);

/// Set if ranks have not made the same calls, so that what they wait for in later ones never comes.
std::optional<std::string> difference_in_calls(const std::map<core::Rank, messages::StepAccount>& accounts);

}  // namespace troupe::actors
