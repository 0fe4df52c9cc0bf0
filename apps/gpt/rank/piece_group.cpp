#include "apps/gpt/rank/piece_group.hpp"

#include <algorithm>

#include "apps/gpt/model/tree.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::DType;
using core::Result;

PieceGroup::PieceGroup(std::size_t size, std::size_t first, InStep& own)
    : size_(size), first_(first), own_(own), brought_(own.members()) {
  for (std::size_t i = 0; i < own.members(); ++i) members_.emplace_back(*this, i);
}

PieceGroup::Counts PieceGroup::by_rank(const Counts& counts) const {
  Counts sums(size_ / own_.members());
  for (std::size_t i = 0; i < size_; ++i) sums[i / own_.members()] += counts[i];
  return sums;
}

Result<void> PieceGroup::gather(const Counts& counts) {
  given_.clear();
  for (const auto& [gives, takes] : brought_) given_.insert(given_.end(), gives.begin(), gives.end());
  if (ranks_ == nullptr) {
    taken_.swap(given_);
    return {};
  }
  const auto of_ranks = by_rank(counts);
  std::size_t all = 0;
  for (const auto count : of_ranks) all += count;
  taken_.resize(all);
  return ranks_->wait(TRY(ranks_->all_gather(gpu::view_of(std::span<const float>(given_)),
                                             gpu::view_of(std::span(taken_)), DType::f32, of_ranks)));
}

// Each member's rows for a rank's members are neighbours, so what a rank takes is one row from every member,
// in their order, with what is for each of its own.
Result<void> PieceGroup::scatter_sum(const Counts& counts) {
  const auto of_ranks = by_rank(counts);
  const std::size_t here = of_ranks[first_ / own_.members()];
  given_.clear();
  Counts gives, takes(of_ranks.size(), here * own_.members());
  std::size_t from = 0;
  for (const std::size_t count : of_ranks) {
    for (const auto& brought : brought_) {
      const auto rows = brought.gives.subspan(from, count);
      given_.insert(given_.end(), rows.begin(), rows.end());
    }
    gives.push_back(count * own_.members());
    from += count;
  }
  if (ranks_ == nullptr) {
    taken_.swap(given_);
  } else {
    taken_.resize(size_ * here);
    TRY(ranks_->wait(TRY(ranks_->all_to_all(gpu::view_of(std::span<const float>(given_)), gives,
                                            gpu::view_of(std::span(taken_)), takes, DType::f32))));
  }
  add_in_tree(size_, here, taken_.data());
  auto next = taken_.begin();
  for (const auto& brought : brought_) {
    std::copy_n(next, brought.takes.size(), brought.takes.begin());
    next += static_cast<std::ptrdiff_t>(brought.takes.size());
  }
  return {};
}

Result<void> PieceGroup::Member::sum(std::span<float> values) {
  return group_.meet(own_, {values, values}, [this, width = values.size()]() -> Result<void> {
    TRY(group_.gather(Counts(group_.size_, width)));
    add_in_tree(group_.size_, width, group_.taken_.data());
    for (const auto& brought : group_.brought_)
      std::copy_n(group_.taken_.begin(), width, brought.takes.begin());
    return {};
  });
}

Result<void> PieceGroup::Member::max(std::span<float> values) {
  return group_.meet(own_, {values, values}, [this, width = values.size()]() -> Result<void> {
    TRY(group_.gather(Counts(group_.size_, width)));
    for (std::size_t i = width; i < group_.taken_.size(); ++i)
      group_.taken_[i % width] = std::max(group_.taken_[i % width], group_.taken_[i]);
    for (const auto& brought : group_.brought_)
      std::copy_n(group_.taken_.begin(), width, brought.takes.begin());
    return {};
  });
}

Result<void> PieceGroup::Member::gather(std::span<const float> own, std::span<float> all,
                                        const Counts& counts) {
  return group_.meet(own_, {own, all}, [this, &counts]() -> Result<void> {
    TRY(group_.gather(counts));
    for (const auto& brought : group_.brought_)
      std::copy(group_.taken_.begin(), group_.taken_.end(), brought.takes.begin());
    return {};
  });
}

Result<void> PieceGroup::Member::scatter_sum(std::span<const float> all, std::span<float> own,
                                             const Counts& counts) {
  return group_.meet(own_, {all, own}, [this, &counts] { return group_.scatter_sum(counts); });
}

}  // namespace troupe::apps::gpt
