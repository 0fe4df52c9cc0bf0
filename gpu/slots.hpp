#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <vector>

#include "gpu/elements.hpp"

namespace troupe::gpu {

/// Ranges of elements that a sum is made of, numbered from 0. What is cut into equal slots, as what has
/// arrived from the members of a group is, takes as much room here as one of them.
class Slots {
 public:
  /// Equal slots that follow each other in memory.
  struct Run {
    ConstElements all;
    std::size_t count = 0;
    std::size_t first = 0;  ///< number of the first slot

    std::size_t bytes() const { return all.view.bytes / count; }
    ConstElements slot(std::size_t place) const {
      return {all.view.subview(place * bytes(), bytes()), all.dtype};
    }
  };

  Slots() = default;
  Slots(std::initializer_list<ConstElements> slots) {
    for (const auto& slot : slots) push_back(slot);
  }

  std::size_t size() const { return runs_.empty() ? 0 : runs_.back().first + runs_.back().count; }
  bool empty() const { return runs_.empty(); }
  const std::vector<Run>& runs() const { return runs_; }
  const Run& run_of(std::size_t slot) const {
    if (runs_.size() == 1) return runs_.front();
    const auto after =
        std::upper_bound(runs_.begin(), runs_.end(), slot,
                         [](std::size_t number, const Run& run) { return number < run.first; });
    return *(after - 1);
  }
  ConstElements operator[](std::size_t slot) const {
    const Run& run = run_of(slot);
    return run.slot(slot - run.first);
  }

  void push_back(ConstElements slot) { add(slot, 1); }
  /// `count` slots, into which the elements are cut.
  void add(ConstElements all, std::size_t count) {
    if (count > 0) runs_.push_back({all, count, size()});
  }
  /// Some of others.
  void add(const Slots& others, std::size_t first, std::size_t count) {
    while (count > 0) {
      const Run& run = others.run_of(first);
      const std::size_t place = first - run.first, length = std::min(count, run.count - place);
      add({run.all.view.subview(place * run.bytes(), length * run.bytes()), run.all.dtype}, length);
      first += length;
      count -= length;
    }
  }

 private:
  std::vector<Run> runs_;
};

}  // namespace troupe::gpu
