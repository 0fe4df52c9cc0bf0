#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace troupe::core {

/// Passes of a steady state, or runs of their entries, for a stage whose rounds cycle through chunks.
inline constexpr std::size_t kLongestSteadyState = 512;

struct Repeat {
  std::size_t period = 1;
  std::size_t times = 1;
  int step = 0;
};

/// The longest range from `first` on in which up to `longest` items repeat, each time advanced by `step`:
/// step_of() returns the advance of the first of them, and is_advanced() says of an item, by its place,
/// whether another one is the same advanced by it.
template <class Item, class StepOf, class IsAdvanced>
Repeat longest_repeat(const std::vector<Item>& items, std::size_t first, std::size_t longest, StepOf step_of,
                      IsAdvanced is_advanced) {
  Repeat best;
  for (std::size_t period = 1; period <= longest && first + 2 * period <= items.size(); ++period) {
    const int step = step_of(items[first], items[first + period]);
    std::size_t times = 1;
    const auto comes_again = [&] {
      const std::size_t now = first + times * period;
      if (now + period > items.size()) return false;
      for (std::size_t i = 0; i < period; ++i) {
        if (!is_advanced(now - period + i, now + i, step)) return false;
      }
      return true;
    };
    while (comes_again()) ++times;
    if (times > 1 && times * period > best.times * best.period) best = {period, times, step};
  }
  return best;
}

}  // namespace troupe::core
