#pragma once

#include <span>
#include <vector>

#include "actors/session/session.hpp"
#include "actors/session/trainer_group.hpp"
#include "apps/gpt/model/expert_activations.hpp"
#include "apps/gpt/stage/cut.hpp"
#include "core/list.hpp"
#include "core/schedule/pipeline_schedule.hpp"

namespace troupe::apps::gpt {

/// The balance losses of microbatches in the layers with experts: stages send them to the last one, which
/// adds them to the loss of the words in the order of layers, as one rank does.
class RouteLosses {
 public:
  /// A group of two for each stage before the last, with its own stream.
  static std::vector<actors::TrainerGroupSpec> groups(core::WorldSize world, int stages);
  /// The session was joined with groups(). A rank has `pieces` of each sequence.
  static core::Result<RouteLosses> open(actors::Session& session, const ModelConfig& config,
                                        const StageCut& cut, const std::vector<StageCut>& all,
                                        std::size_t pieces);

  /// For a step with these forwards.
  core::Result<void> begin_step(const core::PipelineSchedule& schedule);
  /// After a forward of this stage; `routes` are those of all layers.
  core::Result<void> give(const core::PipelinePass& forward, std::size_t piece,
                          std::span<const ExpertRoutes> routes);
  /// On the last stage: the loss including that of the words.
  core::Result<double> total(int microbatch, std::size_t piece, double words);
  core::Result<void> settle();

 private:
  using Posted = actors::TrainerGroup::Posted;

  double& value(int microbatch, std::size_t piece, std::size_t layer) {
    return values_[(static_cast<std::size_t>(microbatch) * pieces_ + piece) * layers_ + layer];
  }
  std::span<std::byte> place(int microbatch, std::size_t piece, ModelPart part);
  actors::TrainerGroup& group(int stage) { return *groups_[stage]; }

  std::size_t layers_ = 0, pieces_ = 1;
  int stage_ = 0;
  core::List<int, StageCut> cuts_;
  core::List<int, actors::TrainerGroup*> groups_;  ///< by stage, for those before the last
  std::vector<double> values_;                     ///< by microbatch, then piece, then layer
  core::List<int, std::vector<Posted>>
      receiving_;  ///< on the last stage, by stage and microbatch: the last part
  std::vector<Posted> sending_;
};

}  // namespace troupe::apps::gpt
