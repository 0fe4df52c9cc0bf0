#include "apps/gpt/rank/context_rank.hpp"

#include <utility>

#include "apps/gpt/stage/context_stage.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

Result<std::unique_ptr<ContextRank>> ContextRank::create(const TrainerOptions& options, core::Rank rank,
                                                         gpu::DeviceKind device) {
  const auto& training = options.session.training;
  const int size = training.context_parallel;
  if (size < 1) return fail(Errc::invalid_argument, "context_parallel must be 1 or more, found {}", size);
  if (size == 1) return std::unique_ptr<ContextRank>{};
  TRY(SequencePart::shape_of(options.microbatch, static_cast<std::size_t>(size)));
  // Tensor-parallel ranks are numbered consecutively; the ranks that share a sequence come next.
  const auto index = static_cast<std::size_t>(rank.value / training.tensor_parallel % size);
  const SequenceMember member{static_cast<std::size_t>(size), index};
  return std::unique_ptr<ContextRank>(new ContextRank(member, training.numerics, device));
}

ContextRank::ContextRank(const SequenceMember& member, core::Numerics numerics, gpu::DeviceKind device)
    : member_(member),
      is_on_gpu_(device == gpu::DeviceKind::cuda),
      group_(member.members, member.index, numerics),
      device_group_(member.members, member.index, numerics) {}

Result<std::unique_ptr<TrainableStage>> ContextRank::make_stage(const TrainerOptions& options,
                                                                const StageCut& cut, const StageShape& shape,
                                                                StagePlace place) {
  if (is_on_gpu_) {
    place.device_groups.sequences = &device_group_;
  } else {
    place.groups.sequences = &group_;
  }
  auto stage = TRY(create_stage(options.model, cut, shape, options.arithmetic, place));
  return std::make_unique<ContextStage>(
      options.microbatch, shape.slots.activations, member_,
      [this](std::span<float> values) { return sum_on_host(values); }, std::move(stage));
}

Result<void> ContextRank::open(actors::Session& session, const StageMemory& memory) {
  memory_ = memory;
  auto& group = *TRY(session.group("cp"));
  if (is_on_gpu_) {
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
      TRY(memory_->allocate(sum_scratch_bytes(member_.members, values.size(), core::DType::f32)));
  TRY(memory_->write(std::as_bytes(values), on_device.view()));
  TRY(device_group_.sum({on_device.view(), core::DType::f32}, scratch.view()));
  return memory_->read(on_device.view(), std::as_writable_bytes(values));
}

Result<double> ContextRank::sum(double own) {
  auto total = static_cast<float>(own);
  TRY(sum_on_host({&total, 1}));
  return total;
}

}  // namespace troupe::apps::gpt
