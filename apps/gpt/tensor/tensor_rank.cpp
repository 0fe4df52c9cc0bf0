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
  const int lanes = std::max(options.session.training.lanes, 1);
  return TRY(
      SlicedModel::create(options.model, options.microbatch, options.arithmetic.keep, share, lanes, context));
}

}  // namespace troupe::apps::gpt
