#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/planes/step/data_plane.hpp"
#include "actors/planes/step/state.hpp"
#include "actors/planes/step/training_plan.hpp"
#include "actors/session/outcomes.hpp"
#include "actors/session/saves.hpp"
#include "actors/shell/rank_world.hpp"
#include "core/checkpoint/survivors.hpp"
#include "core/optimizer/loss_scaler.hpp"
#include "core/result.hpp"
#include "messages/step.hpp"

namespace troupe::actors {

/// The outcome that finish_step() returned, without times.
StepOutcome outcome_of(const messages::StepDecided& decided);

/// What an ended session leaves in its process for the next epoch: the memory of its state, and what is
/// needed to finish a step that others have decided.
class Remains final : public Keepsake {
 public:
  struct Parts {
    std::unique_ptr<const TrainingPlan> plan;
    std::unique_ptr<DataPlane> data;  ///< of this plan
    RankState state;
    std::uint64_t origin = 0;                    ///< as core::Survivor::origin
    Saves::Progress progress;                    ///< as far as the trainer was told
    core::LossScaler scaler;                     ///< as above
    std::span<const messages::StepBegan> begun;  ///< the last two steps
  };

  /// Retires the data plane, and finishes the last step if this rank knows what was decided.
  static core::Result<std::unique_ptr<Remains>> take(Parts parts, std::chrono::nanoseconds deadline);

  const core::Survivor& survivor() const { return survivor_; }
  const Saves::Progress& progress() const { return parts_.progress; }
  const RankState& state() const { return parts_.state; }
  const std::vector<gpu::BufferView>& memory() const { return memory_; }
  DataPlane& data() { return *parts_.data; }

  /// The decision about the last step, where survivor().knows_last_decision.
  std::string decision() const;
  /// Finishes the next step as another rank's decision() says, where survivor().may_finish_next.
  core::Result<void> finish(const std::string& decision);

 private:
  Remains(Parts parts, std::chrono::nanoseconds deadline) : parts_(std::move(parts)), deadline_(deadline) {}
  core::Result<void> finish(std::vector<std::int64_t> words);
  core::Result<void> take(const StepVerdict::Rest& rest, std::span<const messages::StepBegan> begun);

  Parts parts_;
  std::chrono::nanoseconds deadline_;
  core::Survivor survivor_;
  std::vector<gpu::BufferView> memory_;  ///< of the state's pieces
  messages::StepBegan next_;             ///< if it may be finished
  std::vector<std::int64_t> words_;      ///< of the last decision
};

}  // namespace troupe::actors
