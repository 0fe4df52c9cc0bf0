#include "apps/gpt/rank/session_group.hpp"

#include <algorithm>
#include <utility>

#include "core/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps::gpt {

using core::DType;
using core::Result;

std::size_t sum_scratch_bytes(std::size_t members, std::size_t elements, core::DType dtype) {
  return members * ((elements + members - 1) / members) * core::size_of(dtype);
}

void SessionDeviceGroup::open(actors::TrainerGroup& group, gpu::StreamView compute) {
  CHECK(static_cast<std::size_t>(group.size()) == size_ && static_cast<std::size_t>(group.index()) == index_,
        "the session numbers the group's ranks in the order of the model's parts");
  group_ = &group;
  compute_ = compute;
  steps_.clear();
  const int size = group.size();
  for (int apart = 1; apart < size; apart *= 2) {
    for (int left = 0; compute == nullptr && left + apart < size; left += 2 * apart)
      steps_.push_back({left, left + apart});
  }
  for (int member = 1; compute != nullptr && member < size; ++member) steps_.push_back({0, member});
}

Result<void> SessionDeviceGroup::sum(gpu::Elements values, gpu::BufferView scratch) {
  if (!is_ordered_) return group_->wait(TRY(group_->all_reduce(values.view, values.dtype)));
  const Counts counts = even_counts(size_, values.count());
  std::size_t first = 0;
  for (std::size_t member = 0; member < index_; ++member) first += counts[member];
  const gpu::Elements own = values.part(first, counts[index_]);
  TRY(exchange_and_add(values, own, counts, scratch));
  return gather(own, values, counts);
}

Result<void> SessionDeviceGroup::max(gpu::Elements values) {
  return group_->wait(
      TRY(group_->all_reduce(values.view, values.dtype, actors::TrainerGroup::Reduction::max)));
}

Result<void> SessionDeviceGroup::gather(gpu::ConstElements own, gpu::Elements all, const Counts& counts) {
  return group_->wait(TRY(group_->all_gather(own.view, all.view, all.dtype, counts)));
}

Result<void> SessionDeviceGroup::scatter_sum(gpu::ConstElements all, gpu::Elements own, const Counts& counts,
                                             gpu::BufferView scratch) {
  if (is_ordered_) return exchange_and_add(all, own, counts, scratch);
  return group_->wait(TRY(group_->reduce_scatter(all.view, own.view, all.dtype, counts)));
}

Result<void> SessionDeviceGroup::exchange_and_add(gpu::ConstElements all, gpu::Elements own,
                                                  const Counts& counts, gpu::BufferView scratch) {
  const std::size_t bytes = own.view.bytes;
  const auto taken = scratch.subview(0, size_ * bytes);
  TRY(group_->wait(TRY(group_->all_to_all(all.view, counts, taken, Counts(size_, own.count()), all.dtype))));
  gpu::TreeSum sum{.slots = {}, .steps = steps_, .factor = 1, .output = own};
  sum.slots.add({taken, all.dtype}, size_);
  if (bytes > 0) compute_ == nullptr ? gpu::tree_sum(sum) : gpu::tree_sum(std::move(sum), compute_);
  return {};
}

gpu::BufferView SessionTensorGroup::scratch(std::size_t bytes) {
  scratch_.resize(std::max(scratch_.size(), bytes));
  return gpu::view_of(std::span(scratch_));
}

Result<void> SessionTensorGroup::sum(std::span<float> values) {
  return group_.sum({gpu::view_of(values), DType::f32},
                    scratch(sum_scratch_bytes(size(), values.size(), DType::f32)));
}

Result<void> SessionTensorGroup::max(std::span<float> values) {
  return group_.max({gpu::view_of(values), DType::f32});
}

Result<void> SessionTensorGroup::gather(std::span<const float> own, std::span<float> all,
                                        const Counts& counts) {
  return group_.gather({gpu::view_of(own), DType::f32}, {gpu::view_of(all), DType::f32}, counts);
}

Result<void> SessionTensorGroup::scatter_sum(std::span<const float> all, std::span<float> own,
                                             const Counts& counts) {
  return group_.scatter_sum({gpu::view_of(all), DType::f32}, {gpu::view_of(own), DType::f32}, counts,
                            scratch(size() * own.size_bytes()));
}

}  // namespace troupe::apps::gpt
