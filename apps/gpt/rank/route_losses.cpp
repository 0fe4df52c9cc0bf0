#include "apps/gpt/rank/route_losses.hpp"

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

std::string name_of_losses(int stage) {
  return fmt::format("losses-of-stage-{}", stage);
}

}  // namespace

std::vector<actors::TrainerGroupSpec> RouteLosses::groups(core::WorldSize world, int stages) {
  const int pipelines = world.value / stages, last = stages - 1;
  std::vector<actors::TrainerGroupSpec> groups;
  for (int stage = 0; stage < last; ++stage) {
    actors::TrainerGroupSpec group{name_of_losses(stage), {}};
    for (int i = 0; i < pipelines; ++i) {
      group.members.push_back({{stage * pipelines + i}, {last * pipelines + i}});
      for (int other = 0; other < last; ++other) {
        if (other != stage) group.members.push_back({{other * pipelines + i}});
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

Result<RouteLosses> RouteLosses::open(actors::Session& session, const ModelConfig& config,
                                      const StageCut& cut, const std::vector<StageCut>& all,
                                      std::size_t pieces) {
  RouteLosses losses;
  losses.layers_ = config.layers;
  losses.pieces_ = pieces;
  losses.stage_ = cut.stage;
  losses.cuts_.items() = all;
  for (int stage = 0; stage + 1 < cut.stages; ++stage)
    losses.groups_.push_back(TRY(session.group(name_of_losses(stage))));
  return losses;
}

std::span<std::byte> RouteLosses::place(int microbatch, std::size_t piece, ModelPart part) {
  return std::as_writable_bytes(std::span(&value(microbatch, piece, part.first), part.end - part.first));
}

Result<void> RouteLosses::begin_step(const core::PipelineSchedule& schedule) {
  const auto microbatches = static_cast<std::size_t>(schedule.microbatches);
  values_.assign(microbatches * pieces_ * layers_, 0);
  sending_.clear();
  receiving_.assign(groups_.size(), std::vector<Posted>(microbatches));
  if (stage_ + 1 < schedule.stages) return {};
  for (int stage = 0; stage < stage_; ++stage) {
    for (const auto& [kind, microbatch, chunk] : schedule.passes[static_cast<std::size_t>(stage)]) {
      if (kind != core::PassKind::forward) continue;
      const auto part = cuts_[stage].parts[static_cast<std::size_t>(chunk)];
      // The parts of a microbatch arrive in the order of chunks.
      auto& last = receiving_[stage][static_cast<std::size_t>(microbatch)];
      for (std::size_t piece = 0; piece < pieces_; ++piece)
        last = TRY(group(stage).receive(gpu::view_of(place(microbatch, piece, part)), core::DType::u8, 0));
    }
  }
  return {};
}

Result<void> RouteLosses::give(const core::PipelinePass& forward, std::size_t piece,
                               std::span<const ExpertRoutes> routes) {
  const auto part = cuts_[stage_].parts[static_cast<std::size_t>(forward.chunk)];
  for (std::size_t layer = part.first; layer < part.end; ++layer)
    value(forward.microbatch, piece, layer) = routes[layer].loss;
  if (static_cast<std::size_t>(stage_) == groups_.size()) return {};
  const std::span<const std::byte> sent = place(forward.microbatch, piece, part);
  sending_.push_back(TRY(group(stage_).send(gpu::view_of(sent), core::DType::u8, 1)));
  return {};
}

Result<double> RouteLosses::total(int microbatch, std::size_t piece, double words) {
  for (int stage = 0; stage < stage_; ++stage)
    TRY(group(stage).wait(receiving_[stage][static_cast<std::size_t>(microbatch)]));
  double all = words;
  for (std::size_t layer = 0; layer < layers_; ++layer) all += value(microbatch, piece, layer);
  return static_cast<double>(static_cast<float>(all));
}

Result<void> RouteLosses::settle() {
  for (const Posted posted : sending_) TRY(group(stage_).wait(posted));
  return {};
}

}  // namespace troupe::apps::gpt
