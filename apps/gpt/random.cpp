#include "apps/gpt/random.hpp"

#include <cmath>
#include <numbers>

namespace troupe::apps::gpt {

namespace {

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

std::uint64_t draw(const DrawPlace& place) {
  std::uint64_t state = mix(place.seed);
  for (const char c : place.stream) state = mix(state ^ static_cast<unsigned char>(c));
  state = mix(state ^ static_cast<std::uint64_t>(place.step.value));
  state = mix(state ^ static_cast<std::uint64_t>(place.lane.value));
  return mix(state ^ place.index);
}

}  // namespace

void fill_normal(std::uint64_t seed, std::string_view name, float deviation, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double a = draw_uniform({.seed = seed, .stream = name, .index = 2 * i});
    const double b = draw_uniform({.seed = seed, .stream = name, .index = 2 * i + 1});
    values[i] =
        static_cast<float>(deviation * std::sqrt(-2 * std::log(1 - a)) * std::cos(2 * std::numbers::pi * b));
  }
}

std::uint64_t draw_below(const DrawPlace& place, std::uint64_t bound) {
  return static_cast<std::uint64_t>(draw_uniform(place) * static_cast<double>(bound));
}

double draw_uniform(const DrawPlace& place) {
  return static_cast<double>(draw(place) >> 11) * 0x1p-53;
}

}  // namespace troupe::apps::gpt
