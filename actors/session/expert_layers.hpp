#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/planes/experts/plane.hpp"
#include "actors/session/row_exchange.hpp"
#include "actors/session/trainer_group.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// The layers of experts of a session: what trainers call, over the plane that carries it out. Used by the
/// trainer's thread.
class ExpertLayers {
 public:
  /// The lane of the step that the trainer is in; -2 between lanes, such as a pipeline's forward ahead of
  /// its lane; none outside of steps.
  using InLane = std::function<std::optional<core::Lane>()>;

  /// All of them must outlive it.
  ExpertLayers(ExpertPlane& plane, const TrainerInbox& inbox, InLane in_lane);
  ~ExpertLayers();

  /// The groups are made.
  void connect(const SessionContext& context, Sequencer& sequencer);
  /// Errc::invalid_argument lists the layers that there are.
  core::Result<ExpertLayer*> find(std::uint32_t layer);

 private:
  class Layer;

  ExpertPlane& plane_;
  const TrainerInbox& inbox_;
  InLane in_lane_;
  std::optional<RowExchange> rows_;
  std::vector<std::unique_ptr<Layer>> layers_;  ///< null: the layer has no experts
};

}  // namespace troupe::actors
