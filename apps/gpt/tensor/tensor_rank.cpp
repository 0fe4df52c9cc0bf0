#include "apps/gpt/tensor/tensor_rank.hpp"

#include <algorithm>

#include "apps/gpt/tensor/sliced_model.hpp"
#include "apps/gpt/tensor/tensor_model.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

Result<void> check_tensor_parallel(const TrainerOptions& options, const TensorShare& share,
                                   gpu::DeviceKind device) {
  if (device == gpu::DeviceKind::cuda) {
    return fail(Errc::unavailable,
                "layers are shared between ranks on the host device only; use --device host, or leave "
                "--tensor-parallel and --tensor-slices out");
  }
  TRY(validate(options.model));
  return check_share(options.model, share);
}

/// What a rank takes a parameter for, as a number to compare.
float kind_of(const SharedParameter& parameter) {
  if (parameter.axis) return static_cast<float>(*parameter.axis + 2);
  return parameter.also_sum ? 1.0F : 0.0F;
}

const char* name_of_kind(float kind) {
  if (kind == 0) return "the same on all ranks";
  return kind == 1 ? "whole, with a gradient to be summed over the ranks" : "cut";
}

}  // namespace

Result<std::unique_ptr<TensorRank>> TensorRank::create(const TrainerOptions& options, core::Rank rank,
                                                       gpu::DeviceKind device) {
  const int size = options.session.training.tensor_parallel;
  if (size < 1) return fail(Errc::invalid_argument, "tensor_parallel must be 1 or more, found {}", size);
  // The ranks of a group have neighbouring numbers.
  const TensorShare share{static_cast<std::size_t>(size), static_cast<std::size_t>(rank.value % size),
                          options.tensor.sequence_parallel};
  if (size > 1) TRY(check_tensor_parallel(options, share, device));
  return std::unique_ptr<TensorRank>(new TensorRank(options, share));
}

TensorRank::TensorRank(const TrainerOptions& options, const TensorShare& share)
    : table_(options.model, share), group_(share.size, share.index, options.session.training.numerics) {}

Result<std::unique_ptr<TrainableModel>> TensorRank::make_model(const TrainerOptions& options) {
  return TRY(TensorModel::create(options.model, options.microbatch, options.arithmetic.keep, table_.share(),
                                 group_));
}

Result<void> TensorRank::open(actors::Session& session) {
  if (!is_shared()) return {};
  group_.open(*TRY(session.group("tp")));
  return agree();
}

// Ranks that disagree would wait for each other, or add what does not belong together.
Result<void> TensorRank::agree() {
  const std::size_t count = table_.size(), size = group_.size();
  std::vector<float> own, all(count * size);
  for (std::size_t i = 0; i < count; ++i) own.push_back(kind_of(table_.at(i)));
  TRY(group_.gather(own, all, SessionTensorGroup::Counts(size, count)));
  for (std::size_t member = 0; member < size; ++member) {
    for (std::size_t i = 0; i < count; ++i) {
      const float theirs = all[member * count + i];
      if (theirs == own[i]) continue;
      return fail(Errc::mismatch,
                  "tensor-parallel ranks must take each parameter for the same, but {} is {} on member {} of "
                  "the group and {} on member {}; start all ranks with the same options",
                  table_.part().specs[i].name, name_of_kind(own[i]), group_.index(), name_of_kind(theirs),
                  member);
    }
  }
  return {};
}

Result<std::span<const float>> TensorRank::whole(std::size_t parameter, std::span<const float> part) {
  const SharedParameter shared = table_.at(parameter);
  if (!shared.axis) return part;
  const std::size_t size = group_.size();
  gathered_.resize(part.size() * size);
  whole_.resize(shared.whole->elements());
  TRY(group_.gather(part, gathered_, SessionTensorGroup::Counts(size, part.size())));
  for (std::size_t i = 0; i < size; ++i)
    copy_from_part(table_.layout(parameter, i), gathered_.data() + i * part.size(), whole_.data());
  return std::span<const float>(whole_);
}

Result<std::unique_ptr<RowModel>> create_sliced_model(const TrainerOptions& options, gpu::DeviceKind device,
                                                      TensorGroup<float>* context) {
  const TensorShare share{static_cast<std::size_t>(std::max(options.tensor.slices, 1)), 0,
                          options.tensor.sequence_parallel};
  TRY(check_tensor_parallel(options, share, device));
  return TRY(SlicedModel::create(options.model, options.microbatch, options.arithmetic.keep, share, context));
}

}  // namespace troupe::apps::gpt
