#include "apps/gpt/rank/context_rank.hpp"

#include <utility>

#include "apps/gpt/stage/context_stage.hpp"
#include "apps/gpt/stage/piece_stage.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

Result<void> check_pieces(const core::TrainingOptions& training) {
  const int pieces = training.pieces_of_lane(), ranks = training.context_parallel;
  if (pieces == ranks) return {};
  if (pieces % ranks != 0) {
    return fail(
        Errc::invalid_argument,
        "ranks that share sequences compute the same number of pieces, found --context-pieces {} for {} "
        "ranks; choose a multiple of --context-parallel, or leave --context-pieces out",
        pieces, ranks);
  }
  if (training.numerics == core::Numerics::fast) {
    return fail(Errc::invalid_argument,
                "--context-pieces fixes the order of sums, which fast numerics leave to the back-end; use "
                "--numerics ordered, or leave --context-pieces out");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<ContextRank>> ContextRank::create(const TrainerOptions& options, core::Rank rank,
                                                         gpu::DeviceKind device) {
  const auto& training = options.session.training;
  const int ranks = training.context_parallel, all = training.pieces_of_lane();
  if (ranks < 1) return fail(Errc::invalid_argument, "context_parallel must be 1 or more, found {}", ranks);
  if (all == 1) return std::unique_ptr<ContextRank>{};
  TRY(check_pieces(training));
  TRY(SequencePart::shape_of(options.microbatch, static_cast<std::size_t>(all)));
  // Tensor-parallel ranks are numbered consecutively; the ranks that share a sequence come next.
  const int pieces = all / ranks, index = rank.value / training.tensor_parallel % ranks;
  const SequenceMember first{static_cast<std::size_t>(all), static_cast<std::size_t>(index * pieces)};
  return std::unique_ptr<ContextRank>(
      new ContextRank(first, static_cast<std::size_t>(pieces), training.numerics, device));
}

ContextRank::ContextRank(const SequenceMember& first, std::size_t pieces, core::Numerics numerics,
                         gpu::DeviceKind device)
    : first_(first),
      is_on_gpu_(device == gpu::DeviceKind::cuda),
      own_(pieces),
      pieces_(first.members, first.index, own_),
      device_pieces_(first.members, first.index, own_),
      group_(first.members, first.index, numerics),
      device_group_(first.members, first.index, numerics) {}

Result<std::unique_ptr<TrainableStage>> ContextRank::make_stage(const TrainerOptions& options,
                                                                const StageCut& cut, const StageShape& shape,
                                                                StagePlace place) {
  std::vector<std::unique_ptr<TrainableStage>> stages;
  for (std::size_t piece = 0; piece < own_.members(); ++piece) {
    if (is_on_gpu_) {
      place.device_groups.sequences = &device_group(piece);
    } else {
      place.groups.sequences = &host_group(piece);
    }
    stages.push_back(std::make_unique<ContextStage>(
        options.microbatch, shape.slots.activations, member(piece),
        [this, piece](std::span<float> values) { return sum_on_host(piece, values); },
        TRY(create_stage(options.model, cut, shape, options.arithmetic, place))));
  }
  if (stages.size() == 1) return std::move(stages.front());
  return std::make_unique<PieceStage>(own_, std::move(stages));
}

TensorGroup<float>& ContextRank::host_group(std::size_t piece) {
  if (own_.members() > 1) return pieces_.member(piece);
  return group_;
}

DeviceTensorGroup& ContextRank::device_group(std::size_t piece) {
  if (own_.members() > 1) return device_pieces_.member(piece);
  return device_group_;
}

Result<void> ContextRank::open(actors::Session& session, const StageMemory& memory) {
  memory_ = memory;
  auto* const group = is_alone() ? nullptr : TRY(session.group("cp"));
  if (own_.members() > 1) {
    pieces_.open(group);
    device_pieces_.open(group, memory.compute());
  } else if (is_on_gpu_) {
    device_group_.open(*group, memory.compute());
  } else {
    group_.open(*group);
  }
  return {};
}

Result<void> ContextRank::sum_on_host(std::size_t piece, std::span<float> values) {
  if (!is_on_gpu_) return host_group(piece).sum(values);
  const auto on_device = TRY(memory_->allocate(values.size_bytes()));
  const auto scratch =
      TRY(memory_->allocate(sum_scratch_bytes(first_.members, values.size(), core::DType::f32)));
  TRY(memory_->write(std::as_bytes(values), on_device.view()));
  TRY(device_group(piece).sum({on_device.view(), core::DType::f32}, scratch.view()));
  return memory_->read(on_device.view(), std::as_writable_bytes(values));
}

Result<double> ContextRank::sum(std::span<const double> own) {
  double total = 0;
  TRY(own_.run([&](std::size_t piece) -> Result<void> {
    auto value = static_cast<float>(own[piece]);
    TRY(sum_on_host(piece, {&value, 1}));
    total = value;  // the same at all members
    return {};
  }));
  return total;
}

}  // namespace troupe::apps::gpt
