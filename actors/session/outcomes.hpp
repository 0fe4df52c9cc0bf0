#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/ids.hpp"
#include "core/result.hpp"
#include "core/state/strictness.hpp"
#include "core/values/value.hpp"

namespace troupe::actors {

/// What a rank asks of all ranks at the end of a step; all learn of it in the same step.
enum Wish : std::uint32_t {
  kWishSave = 1,   ///< save a checkpoint after this step
  kWishLeave = 2,  ///< end the run after this step
  /// Other processes stand by to join. A save after this step, or after any that follows, local ones
  /// included, lets them: the next begin_step() then returns an Error after which ProcessWorld::form_anew()
  /// goes on, at the saved step. Asked for by the runtime. Sessions that keep their state for
  /// Session::recover() need no save, and do not show this wish: the next begin_step() ends the epoch.
  kWishJoin = 4,
};

/// Where a step's time went, on this rank. "Exposed" is time in which the trainer waited for the runtime and
/// nothing was computed, not even on its compute stream.
struct StepTimes {
  std::chrono::nanoseconds total{};
  std::chrono::nanoseconds exposed{};
  /// The part of `exposed` in which the communication stream was busy.
  std::chrono::nanoseconds exposed_communication{};
  std::chrono::nanoseconds exposed_optimizer{};  ///< of the rest, the part in which the optimizer was busy
  std::chrono::nanoseconds communication{};      ///< the communication stream was busy, hidden or not
  std::chrono::nanoseconds optimizer{};  ///< the update stream was stepping the optimizer, hidden or not
  /// The part of compute() in which the trainer's thread waited for a processor that others had. Looked at in
  /// every kRunDelayEvery-th step and in those that follow one of kLongStep or more.
  std::optional<std::chrono::nanoseconds> run_delay;

  static constexpr std::uint64_t kRunDelayEvery = 16;
  static constexpr std::chrono::nanoseconds kLongStep = std::chrono::milliseconds(50);

  std::chrono::nanoseconds compute() const { return total - exposed; }
  /// Exposed, but not waiting for measured device work: messages, sums over lanes, other ranks.
  std::chrono::nanoseconds other_waits() const { return exposed - exposed_communication - exposed_optimizer; }
};

/// What a rank reports of a piece of a lane (Session::end_lane()).
struct PieceLoss {
  double loss = 0;
  std::optional<double> weight{};  ///< such as the number of the piece's target tokens
};

struct StepOutcome {
  core::Step step{};
  bool committed = false;
  std::string reason;        ///< why not, when not committed; parameters are then as before the step
  double loss = 0;           ///< the mean of all lanes: their exact sum, rounded, over their number or weight
  double weight = 0;         ///< of all lanes: the exact sum of those given to end_lane(), or their number
  double gradient_norm = 0;  ///< averaged, before clipping, without the loss scale
  double clip_factor = 1;
  /// Above 0: the norm is unusually large (TrainingOptions::large_gradient_factor) beside this largest one of
  /// the first steps.
  double usual_norm = 0;
  double loss_scale = 1;  ///< of this step
  /// Elements that are NaN or Inf; above 0 the step is not committed, and a dynamic loss scale takes note.
  std::int64_t nonfinite_gradients = 0;
  std::uint32_t wishes = 0;  ///< of all ranks
  StepTimes times;
};

/// The outcome of a save, the same on every rank.
struct SaveResult {
  std::uint64_t sequence = 0;    ///< as save() returned it
  core::StepCount step{};        ///< completed steps
  std::string name;              ///< "step_00000200"; empty when not committed
  std::uint64_t bytes = 0;       ///< of all tensors
  std::string warning;           ///< something to look at, although the checkpoint is good
  core::Result<void> committed;  ///< or why not: rank, file and reason
};

struct Restored {
  std::string name;
  core::Step step{};     ///< the next one
  core::Value common;    ///< as it was given to save()
  core::Value topology;  ///< of the job that saved it
  /// Newer checkpoints and local saves that could not be used, and why.
  std::vector<std::string> passed_over;
  bool is_local = false;      ///< from the local tier
  bool is_in_memory = false;  ///< from Session::recover()
  /// What was decided on the last step before `step`, which the trainer may not have been told, or may not
  /// have reported. The same on all ranks; empty where no rank knows it, or a save does not say. Its times
  /// are zero, and from a save its wishes.
  std::optional<StepOutcome> last{};
  /// Keys of this rank that the checkpoint lacks, if the strictness returns them.
  core::KeySet unexpected{};
  core::KeySet missing{};  ///< keys that only the checkpoint has, as above
};

}  // namespace troupe::actors
