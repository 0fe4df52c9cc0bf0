#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "actors/session/context.hpp"
#include "actors/session/outcomes.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/steps_missed.hpp"
#include "core/ids.hpp"
#include "core/optimizer/loss_scaler.hpp"
#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::actors {

/// The saves of both tiers that a trainer begins and whose end it is told. Used by the trainer's thread.
class Saves {
 public:
  /// How far the job has progressed.
  struct Progress {
    core::StepCount over{};
    core::StepCount optimizer_steps{};  ///< without steps that were not committed
    core::StepsMissed steps_missed{};
    std::optional<core::LossScaler::State> loss_scaling{};  ///< with a dynamic scale
    std::optional<StepOutcome> last{};                      ///< of the steps, if it is known
  };

  /// The common values of a save: what restores read, and the trainer's own.
  static core::Value::Map values_of(const Progress& progress, const core::Value& common);

  /// `context` must outlive it.
  explicit Saves(const SessionContext& context) : in_(context) {}

  /// Like Session::save() and save_local().
  core::Result<std::uint64_t> begin(const Progress& progress, const core::Value& common,
                                    const std::vector<core::ManifestObject>& objects);
  core::Result<std::uint64_t> begin_local(const Progress& progress, const core::Value& common);
  /// Results of saves that ended since the last call, in order.
  std::vector<SaveResult> take();
  std::vector<SaveResult> take_local();
  /// Waits until every save that was begun has ended.
  core::Result<void> wait();
  core::Result<void> wait_local();
  /// Waits until the saves that were begun have copied the trainer's own tensors.
  core::Result<void> wait_tensors();

  /// Processes stand by to join after this many steps. Waits until a save in progress in either tier has
  /// ended, and returns the Error with which this epoch ends: nothing is lost by going on with them. Called
  /// alike on all ranks.
  core::Result<void> let_others_join(core::StepCount over);

  bool has_begun() const { return shared_.begun != 0 || local_.begun != 0; }

 private:
  core::Result<messages::SaveBegan> message(const Progress& progress, const core::Value& common) const;
  /// The saves of a tier, whose results are the same on all ranks.
  struct Tier {
    std::uint64_t begun = 0;
    std::uint64_t ended = 0;                     ///< of those begun: the first that were waited for
    core::StepCount last{-1};                    ///< after this many steps the last save was begun
    std::optional<core::StepCount> committed{};  ///< the last save that was
    std::vector<SaveResult> seen{};              ///< not taken yet

    void see(SaveResult result, const messages::Failure& failure);
  };
  void look();
  void announce(messages::Role writer, const messages::SaveBegan& begun);

  const SessionContext& in_;
  Tier shared_;  ///< checkpoints
  Tier local_;
};

}  // namespace troupe::actors
