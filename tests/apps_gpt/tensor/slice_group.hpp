#pragma once

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <memory>
#include <vector>

#include "apps/gpt/model/group.hpp"
#include "apps/gpt/model/tree.hpp"

namespace troupe::apps::gpt {

/// A group whose members are threads of this process. Sums add the members' values in a tree, as sums
/// between ranks do in `ordered` numerics. A member that leaves while others wait leaves them waiting.
template <class T>
class SliceGroup final : public TensorGroup<T> {
 public:
  using Counts = typename TensorGroup<T>::Counts;

  /// What the members share. It must outlive them.
  class Room {
   public:
    explicit Room(std::size_t size) : given_(size), barrier_(static_cast<std::ptrdiff_t>(size)) {}

   private:
    friend class SliceGroup;
    std::vector<const T*> given_;  // by member; nothing writes it between two arrivals at the barrier
    std::barrier<> barrier_;
  };

  SliceGroup(Room& room, std::size_t index) : room_(room), index_(index) {}

  std::size_t size() const override { return room_.given_.size(); }
  std::size_t index() const override { return index_; }

  core::Result<void> sum(std::span<T> values) override {
    meet(values.data());
    std::vector<T> terms = terms_at(0, values.size());
    part();
    std::copy_n(terms.begin(), values.size(), values.begin());
    return {};
  }

  core::Result<void> max(std::span<T> values) override {
    std::vector<T> most(values.begin(), values.end());
    meet(values.data());
    for (const T* given : room_.given_) {
      for (std::size_t i = 0; i < values.size(); ++i) most[i] = std::max(most[i], given[i]);
    }
    part();
    std::copy(most.begin(), most.end(), values.begin());
    return {};
  }

  core::Result<void> gather(std::span<const T> own, std::span<T> all, const Counts& counts) override {
    meet(own.data());
    T* place = all.data();
    for (std::size_t member = 0; member < size(); ++member)
      place = std::copy_n(room_.given_[member], counts[member], place);
    part();
    return {};
  }

  core::Result<void> scatter_sum(std::span<const T> all, std::span<T> own, const Counts& counts) override {
    meet(all.data());
    std::size_t first = 0;
    for (std::size_t member = 0; member < index_; ++member) first += counts[member];
    const std::vector<T> terms = terms_at(first, own.size());
    part();
    std::copy_n(terms.begin(), own.size(), own.begin());
    return {};
  }

 private:
  void meet(const T* values) {
    room_.given_[index_] = values;
    room_.barrier_.arrive_and_wait();
  }
  void part() { room_.barrier_.arrive_and_wait(); }

  /// All members' `count` values from `first` on, of which the first member's are then their sums.
  std::vector<T> terms_at(std::size_t first, std::size_t count) const {
    std::vector<T> terms;
    for (const T* given : room_.given_) terms.insert(terms.end(), given + first, given + first + count);
    add_in_tree(size(), count, terms.data());
    return terms;
  }

  Room& room_;
  std::size_t index_;
};

}  // namespace troupe::apps::gpt
