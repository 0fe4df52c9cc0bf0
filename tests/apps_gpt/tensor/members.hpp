#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <thread>
#include <vector>

#include "apps/gpt/model/activations.hpp"
#include "tests/apps_gpt/tensor/slice_group.hpp"

namespace troupe::apps::gpt {

inline void PrintTo(Keep keep, std::ostream* out) {
  *out << (keep == Keep::inputs ? "Recomputed" : "Kept");
}

/// `play` by every member of a group at once, each in a thread of its own.
template <class T>
void play_members(std::size_t size, const std::function<void(TensorGroup<T>& group)>& play) {
  typename SliceGroup<T>::Room room(size);
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < size; ++i) {
    threads.emplace_back([&, i] {
      SliceGroup<T> group(room, i);
      play(group);
    });
  }
}

}  // namespace troupe::apps::gpt
