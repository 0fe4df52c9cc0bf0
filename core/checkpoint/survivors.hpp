#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/save_plan.hpp"
#include "core/checkpoint/shared_load.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// The state that a rank still has in memory from before an epoch began.
struct Survivor {
  /// The epoch in which the steps began that led to this state, from first values or a checkpoint. States of
  /// different origins are not mixed.
  std::uint64_t origin = 0;
  std::uint64_t layout = 0;  ///< a hash: what was dealt over how many ranks, and how
  StepCount over{};          ///< steps that it contains, every one of them decided
  /// It has the reduced gradients of the next step too, and only lacks the decision.
  bool may_finish_next = false;
  bool knows_last_decision = false;  ///< on the last of `over`
  std::uint64_t structure = 0;       ///< hash of what it has: layout_hash()

  friend bool operator==(const Survivor&, const Survivor&) = default;
};

/// What one rank of the new epoch says: what it has, and what it needs.
struct SurvivorReport {
  std::optional<Survivor> has;
  std::uint64_t wants = 0;  ///< layout_hash() of the state that it keeps in this epoch
  bool stays = false;       ///< what it has is what it wants, and where

  friend bool operator==(const SurvivorReport&, const SurvivorReport&) = default;
};

/// For the job's store: a line. Errc::corrupt.
std::string to_text(const SurvivorReport& report);
Result<SurvivorReport> parse_survivor_report(std::string_view text);

/// A step after which all ranks may go on together.
struct CommonStep {
  std::uint64_t origin = 0;
  StepCount over{};
  std::vector<Rank> holders;       ///< ranks with a state of this step, once the next have finished it
  std::vector<Rank> finishing;     ///< of these: they lack the step's decision
  std::optional<Rank> decided_by;  ///< knows what was decided on the last step, and tells the others

  friend bool operator==(const CommonStep&, const CommonStep&) = default;
};

/// Roll forward or void: the steps after which ranks might go on together, the best first; none if nobody has
/// a state. A step that any rank has decided is finished by all that can; a step that nobody decided never
/// was. The first of these whose holders have all that is wanted (plan_survival()) is the one. By rank.
std::vector<CommonStep> common_steps(std::span<const SurvivorReport> reports);

/// What the holders give, and to whom.
struct Survival {
  /// What the holders have, each box once, behind one another in a single imagined file.
  Manifest manifest;
  /// What ranks take that they do not have themselves, from the "readers". Points into `manifest`.
  SharedLoadPlan plan;
};

/// One rank's part: what it has (nothing: it is not a holder), and what it wants. A rank whose memory stays
/// in use as it is wants nothing (null).
struct SurvivalPart {
  std::vector<const SaveStructure*> has = {};
  const SaveStructure* wants = nullptr;
};

/// By rank. Givers are chosen so that each gives about as much. Errc::not_found names something wanted that
/// no holder has. A pure function, so that ranks which plan independently get the same plan.
Result<std::unique_ptr<const Survival>> plan_survival(std::span<const SurvivalPart> parts);

/// The pieces of a structure as targets, in their order.
std::vector<LoadTarget> targets_of(const SaveStructure& structure);

}  // namespace troupe::core
