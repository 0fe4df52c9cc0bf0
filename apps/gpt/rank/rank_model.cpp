#include "apps/gpt/rank/rank_model.hpp"

#include <set>
#include <utility>

#include "apps/gpt/model/optimizer.hpp"
#include "apps/gpt/rank/all_layers.hpp"
#include "apps/gpt/rank/pipeline_trainer.hpp"
#include "core/errors.hpp"
#include "core/layout/buffers.hpp"

namespace troupe::apps::gpt {

core::Result<std::unique_ptr<RankModel>> create_rank_model(actors::RankWorld& world,
                                                           const TrainerOptions& options) {
  auto& device = world.device();
  auto context = TRY(ContextRank::create(options, world.rank(), device.kind()));
  auto share = TRY(TensorRank::create(options, world.rank(), device.kind()));
  if (options.session.training.pipeline_parallel > 1) {
    const PipelinePlace place{world.rank(), world.world_size()};
    return TRY(PipelineTrainer::create(options, place, device, std::move(share), std::move(context)));
  }
  return std::make_unique<AllLayers>(options, device, std::move(share), std::move(context));
}

std::vector<core::ParameterSpec> session_parameters(const ParameterTable& table, core::DType dtype,
                                                    const core::TrainingOptions& training,
                                                    std::optional<core::DType> gather_dtype) {
  std::set<std::size_t> routing;
  for (const auto& block : table.blocks) {
    if (!block.experts) continue;
    routing.insert(block.experts->router);
    if (block.experts->shared_gate) routing.insert(*block.experts->shared_gate);
  }
  std::vector<core::ParameterSpec> specs;
  for (const auto& spec : table.specs) {
    const std::size_t index = specs.size();
    const bool whole =
        core::is_whole_parameter({.dimensions = spec.shape.size(),
                                  .embedding_or_output = index == table.embedding || index == table.head});
    core::ParameterSpec parameter;
    parameter.name = spec.name;
    for (std::size_t extent : spec.shape) parameter.shape.push_back(static_cast<std::int64_t>(extent));
    parameter.dtype = dtype;
    parameter.weight_decay = spec.weight_decay;
    if (spec.unit) parameter.unit = core::UnitIndex{static_cast<std::uint32_t>(*spec.unit)};
    parameter.is_expert = spec.is_expert;
    if (whole && !routing.contains(index)) parameter.gather_dtype = gather_dtype;
    if (!training.groups.empty()) parameter.group = whole ? kMatrices : kOthers;
    specs.push_back(std::move(parameter));
  }
  return specs;
}

std::vector<core::ParameterSpec> session_parameters(const SharedTable& table, const TrainerOptions& options) {
  auto specs = session_parameters(table.part(), options.arithmetic.dtype, options.session.training,
                                  options.gather_dtype);
  table.declare(specs);
  return specs;
}

}  // namespace troupe::apps::gpt
