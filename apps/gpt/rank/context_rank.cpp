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

Result<void> check_pieces(const TrainerOptions& options, gpu::DeviceKind device) {
  const auto& training = options.session.training;
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
  if (device != gpu::DeviceKind::cuda) return {};
  return fail(
      Errc::unavailable,
      "on a GPU a rank computes one piece of each sequence, found --context-pieces {} for {} of them; "
      "use --context-parallel {}, or leave --context-pieces out",
      pieces, ranks, pieces);
}

}  // namespace

Result<std::unique_ptr<ContextRank>> ContextRank::create(const TrainerOptions& options, core::Rank rank,
                                                         gpu::DeviceKind device) {
  const auto& training = options.session.training;
  const int ranks = training.context_parallel, all = training.pieces_of_lane();
  if (ranks < 1) return fail(Errc::invalid_argument, "context_parallel must be 1 or more, found {}", ranks);
  if (all == 1) return std::unique_ptr<ContextRank>{};
  TRY(check_pieces(options, device));
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
      group_(first.members, first.index, numerics),
      device_group_(first.members, first.index, numerics) {}

Result<std::unique_ptr<TrainableStage>> ContextRank::make_stage(const TrainerOptions& options,
                                                                const StageCut& cut, const StageShape& shape,
                                                                StagePlace place) {
  const auto make = [&](std::size_t piece, MembersSum sum) -> Result<std::unique_ptr<TrainableStage>> {
    auto stage = TRY(create_stage(options.model, cut, shape, options.arithmetic, place));
    return std::make_unique<ContextStage>(options.microbatch, shape.slots.activations, member(piece),
                                          std::move(sum), std::move(stage));
  };
  if (own_.members() == 1) {
    if (is_on_gpu_) {
      place.device_groups.sequences = &device_group_;
    } else {
      place.groups.sequences = &group_;
    }
    return make(0, [this](std::span<float> values) { return sum_on_host(values); });
  }
  std::vector<std::unique_ptr<TrainableStage>> stages;
  for (std::size_t piece = 0; piece < own_.members(); ++piece) {
    auto& group = pieces_.member(piece);
    place.groups.sequences = &group;
    stages.push_back(TRY(make(piece, [&group](std::span<float> values) { return group.sum(values); })));
  }
  return std::make_unique<PieceStage>(own_, std::move(stages));
}

Result<void> ContextRank::open(actors::Session& session, const StageMemory& memory) {
  memory_ = memory;
  if (is_alone()) return {};
  auto& group = *TRY(session.group("cp"));
  if (own_.members() > 1) {
    pieces_.open(group);
  } else if (is_on_gpu_) {
    device_group_.open(group, memory.compute());
  } else {
    group_.open(group);
  }
  return {};
}

Result<void> ContextRank::sum_on_host(std::span<float> values) {
  if (!is_on_gpu_) return group_.sum(values);
  const auto on_device = TRY(memory_->allocate(values.size_bytes()));
  const auto scratch =
      TRY(memory_->allocate(sum_scratch_bytes(first_.members, values.size(), core::DType::f32)));
  TRY(memory_->write(std::as_bytes(values), on_device.view()));
  TRY(device_group_.sum({on_device.view(), core::DType::f32}, scratch.view()));
  return memory_->read(on_device.view(), std::as_writable_bytes(values));
}

Result<double> ContextRank::sum(std::span<const double> own) {
  auto total = static_cast<float>(own.front());
  if (own_.members() == 1) {
    TRY(sum_on_host({&total, 1}));
    return total;
  }
  TRY(own_.run([&](std::size_t piece) -> Result<void> {
    auto value = static_cast<float>(own[piece]);
    TRY(pieces_.member(piece).sum({&value, 1}));
    total = value;  // the same at all members
    return {};
  }));
  return total;
}

}  // namespace troupe::apps::gpt
