#include "apps/gpt/rank/session_group.hpp"

#include <algorithm>

#include "apps/gpt/model/tree.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::DType;
using core::Result;

namespace {

using Reduction = actors::TrainerGroup::Reduction;

}  // namespace

void SessionTensorGroup::open(actors::TrainerGroup& group) {
  CHECK(static_cast<std::size_t>(group.size()) == size_ && static_cast<std::size_t>(group.index()) == index_,
        "the session numbers the group's ranks in the order of the model's parts");
  group_ = &group;
}

Result<void> SessionTensorGroup::sum(std::span<float> values) {
  if (!is_ordered_)
    return group_->wait(TRY(group_->all_reduce(gpu::view_of(values), DType::f32, Reduction::sum)));
  const Counts counts = even_counts(size_, values.size());
  own_.resize(counts[index_]);
  TRY(exchange_and_add(values, own_, counts));
  return gather(own_, values, counts);
}

Result<void> SessionTensorGroup::max(std::span<float> values) {
  return group_->wait(TRY(group_->all_reduce(gpu::view_of(values), DType::f32, Reduction::max)));
}

Result<void> SessionTensorGroup::gather(std::span<const float> own, std::span<float> all,
                                        const Counts& counts) {
  return group_->wait(TRY(group_->all_gather(gpu::view_of(own), gpu::view_of(all), DType::f32, counts)));
}

Result<void> SessionTensorGroup::scatter_sum(std::span<const float> all, std::span<float> own,
                                             const Counts& counts) {
  if (is_ordered_) return exchange_and_add(all, own, counts);
  return group_->wait(
      TRY(group_->reduce_scatter(gpu::view_of(all), gpu::view_of(own), DType::f32, counts, Reduction::sum)));
}

Result<void> SessionTensorGroup::exchange_and_add(std::span<const float> all, std::span<float> own,
                                                  const Counts& counts) {
  taken_.resize(size_ * own.size());
  const std::span taken(taken_);
  TRY(group_->wait(TRY(group_->all_to_all(gpu::view_of(all), counts, gpu::view_of(taken),
                                          Counts(size_, own.size()), DType::f32))));
  add_in_tree(size_, own.size(), taken_.data());
  std::copy_n(taken_.begin(), own.size(), own.begin());
  return {};
}

}  // namespace troupe::apps::gpt
