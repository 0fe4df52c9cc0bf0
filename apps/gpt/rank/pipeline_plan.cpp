#include "apps/gpt/rank/pipeline_plan.hpp"

#include <set>

#include "apps/gpt/model/weight_work.hpp"
#include "apps/gpt/rank/stage_passes.hpp"
#include "apps/gpt/rank/tensor_rank.hpp"
#include "apps/gpt/stage/models.hpp"
#include "apps/pipeline/runner.hpp"
#include "core/errors.hpp"
#include "core/schedule/check_schedule.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;
using core::ScheduleKind;

namespace {

/// Something is gathered or reduced in every round, so sessions go by the stage's passes.
bool goes_by_passes(const TrainerOptions& options) {
  const auto strategy = options.session.training.strategy;
  return strategy != core::Strategy::ddp && strategy != core::Strategy::zero1;
}

/// The number of ranks of one stage.
int stage_ranks(const TrainerOptions& options, core::WorldSize world) {
  return world.value / options.session.training.pipeline_parallel;
}

/// A piece of each sequence. ContextRank has checked that they are cut evenly.
BatchShape batch_of_piece(const TrainerOptions& options) {
  const auto pieces = static_cast<std::size_t>(options.session.training.pieces_of_lane());
  return {options.microbatch.batch, options.microbatch.length / pieces};
}

std::size_t own_pieces_of(const TrainerOptions& options) {
  return static_cast<std::size_t>(options.session.training.own_pieces());
}

Result<core::PipelineSchedule> schedule_with(const TrainerOptions& options, StageDeal deal) {
  return played(TRY(schedule_of_rounds(options, deal)), deal.lanes * options.session.training.microbatches);
}

}  // namespace

bool splits_backward(const TrainerOptions& options) {
  return options.pipeline.schedule == ScheduleKind::zero_bubble &&
         options.session.training.pipeline_parallel > 1;
}

Result<void> check_pipeline(const TrainerOptions& options, core::WorldSize world) {
  const auto& training = options.session.training;
  const int stages = training.pipeline_parallel;
  TRY(check_split(splits_backward(options), options.arithmetic.keep));
  const int parts = training.tensor_parallel * training.context_parallel;
  if (world.value % (stages * parts) != 0) {
    return fail(Errc::invalid_argument,
                "expected pipelines of {}{} ranks, but the job has {}; choose {} divides them",
                parts > 1 ? fmt::format("{} times ", stages) : "", parts > 1 ? parts : stages, world.value,
                parts > 1 ? "--pipeline-parallel, --tensor-parallel and --context-parallel whose product"
                          : "a --pipeline-parallel that");
  }
  if (training.expert_ranks() > 1 && options.pipeline.chunks > 1 && !goes_by_passes(options)) {
    return fail(
        Errc::unavailable,
        "gradients of experts that {} ranks share do not wait for their lane, as those of several chunks "
        "do with --strategy {}; use zero2 or zero3, or leave out --pipeline-chunks",
        training.expert_ranks(), core::name_of(training.strategy));
  }
  TRY(cut_model(options.model, options.pipeline, stages, 0));
  std::set<StageDeal> deals;
  for (int rank = 0; rank < world.value / stages; ++rank)
    deals.insert(TRY(deal_of(options, {{rank}, world})));
  for (const StageDeal& deal : deals) {
    TRY(core::check_schedule(TRY(schedule_of_rounds(options, deal))));
    TRY(core::check_schedule(TRY(schedule_with(options, deal))));
  }
  return {};
}

Result<StageCut> cut_of(const TrainerOptions& options, PipelinePlace place) {
  return cut_model(options.model, options.pipeline, options.session.training.pipeline_parallel,
                   place.rank.value / stage_ranks(options, place.world));
}

Result<core::PipelineSchedule> schedule_of(const TrainerOptions& options, PipelinePlace place) {
  if (options.session.training.pipeline_parallel == 1) return core::PipelineSchedule{1, 1, 0, {{}}};
  return schedule_with(options, TRY(deal_of(options, place)));
}

Result<std::size_t> pipeline_bytes(const TrainerOptions& options, PipelinePlace place,
                                   gpu::DeviceKind device) {
  const auto cut = TRY(cut_of(options, place));
  const auto schedule = TRY(schedule_of(options, place));
  const SharedTable shared(options.model, share_of(options, place.rank));
  const auto model = config_of_share(options.model, shared.share().size);
  const auto& table = shared.part();
  const auto elements_of = [&](TableRange range) {
    std::size_t elements = 0;
    for (std::size_t i = range.begin; i < range.end; ++i) elements += table.specs[i].elements();
    return elements;
  };
  std::size_t elements = 0;
  // Gradients that wait for their lane, and both ends of a tied embedding.
  const auto stages = static_cast<std::size_t>(cut.stages), waiting = goes_by_passes(options) ? 0 : stages;
  for (std::size_t chunk = 1; chunk < cut.parts.size(); ++chunk)
    elements += waiting * elements_of(parameters_of(model, table, cut.parts[chunk]));
  const bool is_ordered = options.session.training.numerics == core::Numerics::ordered;
  const auto how = is_ordered ? HeadGradient::factors : HeadGradient::sum;
  const HeadShape head = head_shape(options);
  const std::size_t pieces = own_pieces_of(options);
  std::size_t bytes = pieces * elements * sizeof(float);
  const bool has_copy = options.model.tied_embeddings && cut.stages > 1;
  if (has_copy && cut.is_first()) bytes += head.message_bytes(how);
  if (has_copy && cut.is_last())
    bytes += head.value_bytes() + (is_ordered ? stages : 1) * head.message_bytes(how);
  const auto shape = stage_shape(options, place, schedule, cut.stage);
  return bytes + pieces * stage_bytes(options.model, cut, shape, options.arithmetic, device);
}

StageShape stage_shape(const TrainerOptions& options, PipelinePlace place,
                       const core::PipelineSchedule& schedule, int stage) {
  return {.batch = batch_of_piece(options),
          .keep = options.arithmetic.keep,
          .slots = schedule.stages > 1 ? StageRunner(schedule, stage).slots() : PassSlots{1, 1},
          .is_split = splits_backward(options),
          .share = share_of(options, place.rank),
          .context_parallel = static_cast<std::size_t>(options.session.training.pieces_of_lane())};
}

HeadShape head_shape(const TrainerOptions& options) {
  const auto parts = static_cast<std::size_t>(options.session.training.tensor_parallel);
  return {batch_of_piece(options).rows(), options.model.width, options.model.vocabulary / parts,
          options.arithmetic.dtype, own_pieces_of(options)};
}

}  // namespace troupe::apps::gpt
