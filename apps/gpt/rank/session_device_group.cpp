#include "apps/gpt/rank/session_device_group.hpp"

#include <utility>

#include "apps/gpt/model/group.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps::gpt {

using core::Result;

std::size_t sum_scratch_bytes(std::size_t members, std::size_t elements, core::DType dtype) {
  return members * ((elements + members - 1) / members) * core::size_of(dtype);
}

SessionDeviceGroup::SessionDeviceGroup(std::size_t size, std::size_t index, core::Numerics numerics)
    : size_(size), index_(index), is_ordered_(numerics == core::Numerics::ordered) {
  for (int member = 1; member < static_cast<int>(size); ++member) in_order_.push_back({0, member});
}

void SessionDeviceGroup::open(actors::TrainerGroup& group, gpu::StreamView compute) {
  CHECK(static_cast<std::size_t>(group.size()) == size_ && static_cast<std::size_t>(group.index()) == index_,
        "the session numbers the group's ranks in the order of the model's parts");
  group_ = &group;
  compute_ = compute;
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
  gpu::TreeSum sum{.slots = {}, .steps = in_order_, .factor = 1, .output = own};
  sum.slots.add({taken, all.dtype}, size_);
  if (bytes > 0) gpu::tree_sum(std::move(sum), compute_);
  return {};
}

}  // namespace troupe::apps::gpt
