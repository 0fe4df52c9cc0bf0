#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/ids.hpp"
#include "messages/calls.hpp"
#include "messages/failure.hpp"

namespace troupe::messages {

/// Trainer to all roles of its rank: the step's gradients begin to arrive.
struct StepBegan {
  core::Step step{};
  double learning_rate = 0;
  double loss_scale = 1;  ///< gradients are multiplied by this

  friend bool operator==(const StepBegan&, const StepBegan&) = default;
};

/// Trainer to Conductor and RankSupervisor, before the first step: the trainer uses its units in another
/// order than the one the roles were created for. Entries and buckets keep their numbers.
struct OrderLearned {
  std::vector<core::PlanEntryIndex> launches;  ///< all entries of a step, in launch order
  std::vector<core::BucketIndex> updates;      ///< all buckets, in the order the next forward needs them

  friend bool operator==(const OrderLearned&, const OrderLearned&) = default;
};

struct LaneLoss {
  core::Lane lane{};
  double loss = 0;
  std::optional<double> weight{};

  friend bool operator==(const LaneLoss&, const LaneLoss&) = default;
};

/// Trainer to RankSupervisor: all lanes of this rank are complete. A non-empty `refusal` asks that the step
/// is not committed on any rank. `alike` is what all ranks must have given alike, as "what: how" with the
/// same things in the same order on every rank; `calls` is what they must have called alike.
struct BackwardFinished {
  core::Step step{};
  std::vector<LaneLoss> losses;
  std::string refusal;
  std::uint32_t wishes = 0;  ///< bits of Wish
  std::vector<std::string> alike;
  CallCounts calls;

  friend bool operator==(const BackwardFinished&, const BackwardFinished&) = default;
};

/// The result of the step's small reduction; the same bits on every rank.
struct Verdict {
  double gradient_norm = 0;              ///< L2 norm over all parameters of the job, before clipping
  std::int64_t nonfinite_gradients = 0;  ///< elements that are NaN or Inf
  double loss = 0;                       ///< the lanes' exact sum, rounded, over their number or weight
  double weight = 1;                     ///< of all lanes: their exact sum, rounded; or their number
  double gradient_factor = 1;            ///< makes gradients that are averaged over lanes what they should be
  std::int64_t unweighted_lanes = 0;     ///< lanes without a weight in a step where others have one
  std::int64_t refusing = 0;             ///< ranks that refuse the step
  bool differs = false;                  ///< ranks have not given or called the same
  std::uint32_t wishes = 0;              ///< of all ranks combined

  friend bool operator==(const Verdict&, const Verdict&) = default;
};

/// RankSupervisor to Coordinator, from every rank, when the verdict says that a rank refuses the step or that
/// ranks differ: this rank's reason, if it has one, and what it has of BackwardFinished.
struct StepAccount {
  core::Rank rank{};
  core::Step step{};
  std::string refusal;
  std::vector<std::string> alike;
  CallCounts calls;

  friend bool operator==(const StepAccount&, const StepAccount&) = default;
};

/// Coordinator to every RankSupervisor, once it has the account of every rank: why the step is not committed.
struct StepReason {
  core::Step step{};
  std::string reason;

  friend bool operator==(const StepReason&, const StepReason&) = default;
};

/// Trainer to Coordinator, now and then: how long this rank computes for a lane, in the mean of the steps
/// since it last told, and prepares a step, in the median; without waits for others, but with those for a
/// processor of the host, which are told too. And how long a step of its lanes takes with all waits, in the
/// mean.
struct StepsTimed {
  core::Rank rank{};
  std::uint64_t steps = 0;
  std::uint32_t lanes = 1;
  std::int64_t lane_nanoseconds = 0;
  std::int64_t run_delay_nanoseconds = 0;  ///< of lane_nanoseconds
  std::int64_t step_nanoseconds = 0;

  friend bool operator==(const StepsTimed&, const StepsTimed&) = default;
};

/// Device to RankSupervisor, when the verdict's collective is complete.
struct VerdictArrived {
  core::Step step{};
  Verdict verdict;

  friend bool operator==(const VerdictArrived&, const VerdictArrived&) = default;
};

/// RankSupervisor to Conductor, ParameterShards and Trainer: the same on every rank.
struct StepDecided {
  core::Step step{};
  bool commit = false;
  std::string reason;      ///< why not, if not committed
  double clip_factor = 1;  ///< multiplies every gradient, averaged and without the loss scale
  double learning_rate = 0;
  Verdict verdict;  ///< of gradients without the loss scale, and averaged
  double loss_scale = 1;
  double usual_norm = 0;  ///< above 0: the gradients' norm is unusually large compared with this

  friend bool operator==(const StepDecided&, const StepDecided&) = default;
};

/// RankSupervisor to Trainer and subscribers: every shard of this rank is updated, or, where the step was
/// refused, as it was.
struct StepCommitted {
  core::Step step{};
  bool commit = false;  ///< as decided

  friend bool operator==(const StepCommitted&, const StepCommitted&) = default;
};

/// RankSupervisor to Trainer and subscribers: the rank is fenced; no further step of this epoch will be
/// decided.
struct StepFailed {
  core::Step step{};
  Failure failure;

  friend bool operator==(const StepFailed&, const StepFailed&) = default;
};

}  // namespace troupe::messages
