#pragma once

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <memory>
#include <vector>

#include "apps/gpt/model/group.hpp"

namespace troupe::apps::gpt {

/// A group whose members are threads of this process. Sums add the members' values in their order, as sums
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
    return combine(values, [](T a, T b) { return a + b; });
  }

  core::Result<void> max(std::span<T> values) override {
    return combine(values, [](T a, T b) { return b > a ? b : a; });
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
    for (std::size_t i = 0; i < own.size(); ++i) {
      T total = room_.given_[0][first + i];
      for (std::size_t member = 1; member < size(); ++member) total += room_.given_[member][first + i];
      own[i] = total;
    }
    part();
    return {};
  }

 private:
  void meet(const T* values) {
    room_.given_[index_] = values;
    room_.barrier_.arrive_and_wait();
  }
  void part() { room_.barrier_.arrive_and_wait(); }

  template <class Operator>
  core::Result<void> combine(std::span<T> values, Operator both) {
    std::vector<T> combined(values.size());
    meet(values.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      T total = room_.given_[0][i];
      for (std::size_t member = 1; member < size(); ++member) total = both(total, room_.given_[member][i]);
      combined[i] = total;
    }
    part();
    std::copy(combined.begin(), combined.end(), values.begin());
    return {};
  }

  Room& room_;
  std::size_t index_;
};

}  // namespace troupe::apps::gpt
