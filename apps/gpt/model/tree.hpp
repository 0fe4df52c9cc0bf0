#pragma once

#include <cstddef>

namespace troupe::apps::gpt {

/// Adds `count` terms of `width` values, one after another, up in the first one: neighbours, then the sums of
/// neighbours, and so on; a term without a neighbour passes through. So are lanes (core/plan/lanes.hpp). A
/// power of two of consecutive terms may be added first, as one term is: then the bits are the same.
template <class T>
void add_in_tree(std::size_t count, std::size_t width, T* terms) {
  for (std::size_t apart = 1; apart < count; apart *= 2) {
    for (std::size_t left = 0; left + apart < count; left += 2 * apart) {
      T* to = terms + left * width;
      const T* from = terms + (left + apart) * width;
      for (std::size_t i = 0; i < width; ++i) to[i] += from[i];
    }
  }
}

}  // namespace troupe::apps::gpt
