#include "apps/gpt/rank/piece_group.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "apps/gpt/model/tree.hpp"
#include "core/dtype.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps::gpt {

using core::DType;
using core::Result;

namespace {

/// A number for each rank: the sum of those of its members.
template <class Counts>
Counts by_rank(const Counts& counts, std::size_t members) {
  Counts sums(counts.size() / members);
  for (std::size_t i = 0; i < counts.size(); ++i) sums[i / members] += counts[i];
  return sums;
}

std::size_t sum_of(const std::vector<std::size_t>& counts, std::size_t end) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(end), std::size_t{0});
}

}  // namespace

PieceGroup::PieceGroup(std::size_t size, std::size_t first, InStep& own)
    : size_(size), first_(first), own_(own), brought_(own.members()) {
  for (std::size_t i = 0; i < own.members(); ++i) members_.emplace_back(*this, i);
}

Result<void> PieceGroup::gather(const Counts& counts) {
  given_.clear();
  for (const auto& [gives, takes] : brought_) given_.insert(given_.end(), gives.begin(), gives.end());
  if (ranks_ == nullptr) {
    taken_.swap(given_);
    return {};
  }
  const auto of_ranks = by_rank(counts, own_.members());
  taken_.resize(sum_of(counts, counts.size()));
  return ranks_->wait(TRY(ranks_->all_gather(gpu::view_of(std::span<const float>(given_)),
                                             gpu::view_of(std::span(taken_)), DType::f32, of_ranks)));
}

// Each member's rows for a rank's members are neighbours, so what a rank takes is one row from every member,
// in their order, with what is for each of its own.
Result<void> PieceGroup::scatter_sum(const Counts& counts) {
  const auto of_ranks = by_rank(counts, own_.members());
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

DevicePieceGroup::DevicePieceGroup(std::size_t size, std::size_t first, InStep& own)
    : size_(size), first_(first), own_(own), brought_(own.members()) {
  for (std::size_t i = 0; i < own.members(); ++i) members_.emplace_back(*this, i);
  for (int member = 1; member < static_cast<int>(size); ++member) in_order_.push_back({0, member});
}

// This rank's rows are put together where the last member takes all, to be given to the others from there,
// and all rows arrive where the first one takes them.
Result<void> DevicePieceGroup::gather(const Counts& counts) {
  const auto copy = [&](gpu::ConstElements from, gpu::Elements to) {
    if (from.view.bytes > 0 && from.view.data != to.view.data) gpu::copy(from.view, to.view, compute_);
  };
  const gpu::Elements all = brought_.front().takes;
  const gpu::Elements given = ranks_ == nullptr ? all : brought_.back().takes;
  const std::size_t first = sum_of(counts, first_);
  std::size_t next = first;
  for (const auto& brought : brought_) {
    copy(brought.gives, given.part(next, brought.gives.count()));
    next += brought.gives.count();
  }
  if (ranks_ != nullptr)
    TRY(ranks_->wait(TRY(ranks_->all_gather(given.part(first, next - first).view, all.view, all.dtype,
                                            by_rank(counts, own_.members())))));
  for (const auto& brought : brought_) copy(all, brought.takes);
  return {};
}

// Each member's rows for a rank's members are neighbours, and go to it in one exchange: the members of a rank
// take turns.
Result<void> DevicePieceGroup::scatter_sum(const Counts& counts) {
  const auto of_ranks = by_rank(counts, own_.members());
  const std::size_t here = of_ranks[first_ / own_.members()];
  const auto dtype = brought_.front().gives.dtype;
  for (const auto& brought : brought_) {
    if (ranks_ == nullptr) break;
    const gpu::Elements taken{brought.scratch.subview(0, of_ranks.size() * here * core::size_of(dtype)),
                              dtype};
    TRY(ranks_->wait(TRY(
        ranks_->all_to_all(brought.gives.view, of_ranks, taken.view, Counts(of_ranks.size(), here), dtype))));
  }
  std::size_t next = 0;
  for (const auto& brought : brought_) {
    const std::size_t count = brought.takes.count();
    gpu::TreeSum sum{.slots = {}, .steps = in_order_, .factor = 1, .output = brought.takes};
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
      for (const auto& from : brought_) {
        const gpu::ConstElements all = ranks_ == nullptr ? from.gives : gpu::Elements{from.scratch, dtype};
        sum.slots.push_back(all.part(rank * here + next, count));
      }
    }
    if (count > 0) gpu::tree_sum(std::move(sum), compute_);
    next += count;
  }
  return {};
}

// Each member's part of the sum is made at its place among the values.
Result<void> DevicePieceGroup::Member::sum(gpu::Elements values, gpu::BufferView scratch) {
  const Counts counts = even_counts(size(), values.count());
  const auto own = values.part(sum_of(counts, index()), counts[index()]);
  TRY(scatter_sum(values, own, counts, scratch));
  return gather(own, values, counts);
}

Result<void> DevicePieceGroup::Member::max(gpu::Elements) {
  CHECK(false, "pieces of sequences have no maxima");
}

Result<void> DevicePieceGroup::Member::gather(gpu::ConstElements own, gpu::Elements all,
                                              const Counts& counts) {
  group_.brought_[own_] = {own, all};
  return group_.own_.meet([this, &counts] { return group_.gather(counts); });
}

Result<void> DevicePieceGroup::Member::scatter_sum(gpu::ConstElements all, gpu::Elements own,
                                                   const Counts& counts, gpu::BufferView scratch) {
  group_.brought_[own_] = {all, own, scratch};
  return group_.own_.meet([this, &counts] { return group_.scatter_sum(counts); });
}

}  // namespace troupe::apps::gpt
