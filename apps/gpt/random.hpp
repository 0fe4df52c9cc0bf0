#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/ids.hpp"

namespace troupe::apps::gpt {

/// Fills `values` with normal numbers around 0 which depend on the seed and the name alone.
void fill_normal(std::uint64_t seed, std::string_view name, float deviation, std::span<float> values);

/// Where a random draw belongs; equal places draw equal numbers, whichever rank asks.
struct DrawPlace {
  std::uint64_t seed = 0;
  std::string_view stream;
  core::Step step;
  core::Lane lane;
  std::uint64_t index = 0;
};

/// A whole number in [0, bound), bound >= 1.
std::uint64_t draw_below(const DrawPlace& place, std::uint64_t bound);
/// A number in [0, 1).
double draw_uniform(const DrawPlace& place);

}  // namespace troupe::apps::gpt
