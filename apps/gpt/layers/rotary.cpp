#include "apps/gpt/layers/rotary.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace troupe::apps::gpt {

namespace {

double scaled_as_llama3(double angle, const RotaryScaling& scaling) {
  const double turns = scaling.original_context * angle / (2 * std::numbers::pi);
  if (turns < scaling.low_frequency) return angle / scaling.factor;
  if (turns > scaling.high_frequency) return angle;
  const double smooth = (turns - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency);
  return (1 - smooth) * angle / scaling.factor + smooth * angle;
}

/// Pairs up to the first of these are fast, those from the second on are slow.
std::pair<double, double> yarn_borders(std::size_t half, double base, const RotaryScaling& scaling) {
  const auto width = static_cast<double>(2 * half);
  const auto pair_of = [&](double turns) {
    return width * std::log(scaling.original_context / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
  };
  double low = pair_of(scaling.fast_turns), high = pair_of(scaling.slow_turns);
  if (scaling.whole_pairs) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, width - 1);
  return {low, low == high ? high + 0.001 : high};
}

/// The angles between neighbouring positions, one per pair.
std::vector<double> angles_of(std::size_t half, std::size_t context, double base,
                              const RotaryScaling& scaling) {
  using Kind = RotaryScaling::Kind;
  const bool is_long = static_cast<double>(context) > scaling.original_context;
  const auto& factors = is_long ? scaling.long_factors : scaling.short_factors;
  const auto [low, high] =
      scaling.kind == Kind::yarn ? yarn_borders(half, base, scaling) : std::pair(0.0, 1.0);
  std::vector<double> angles(half);
  for (std::size_t i = 0; i < half; ++i) {
    const double angle = std::pow(base, -static_cast<double>(i) / static_cast<double>(half));
    angles[i] = angle;
    if (scaling.kind == Kind::linear) angles[i] = angle / scaling.factor;
    if (scaling.kind == Kind::llama3) angles[i] = scaled_as_llama3(angle, scaling);
    if (scaling.kind == Kind::longrope) angles[i] = angle / factors[i];
    if (scaling.kind == Kind::yarn) {
      const double slowness = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      angles[i] = angle / scaling.factor * slowness + angle * (1 - slowness);
    }
  }
  return angles;
}

std::vector<std::size_t> first_positions(std::size_t context) {
  std::vector<std::size_t> positions(context);
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

}  // namespace

template <class T>
Rotary<T>::Rotary(std::size_t context, std::size_t head_size, double base, const RotaryScaling& scaling)
    : Rotary(first_positions(context), context, head_size, base, scaling) {}

template <class T>
Rotary<T>::Rotary(std::span<const std::size_t> positions, std::size_t context, std::size_t head_size,
                  double base, const RotaryScaling& scaling)
    : half_(head_size / 2) {
  cosine_.reserve(positions.size() * half_);
  sine_.reserve(positions.size() * half_);
  const auto angles = angles_of(half_, context, base, scaling);
  for (const std::size_t position : positions) {
    for (const double each : angles) {
      const double angle = static_cast<double>(position) * each;
      cosine_.push_back(static_cast<T>(std::cos(angle) * scaling.attention_factor));
      sine_.push_back(static_cast<T>(std::sin(angle) * scaling.attention_factor));
    }
  }
}

template <class T>
void Rotary<T>::forward(std::size_t batch, std::size_t length, std::size_t heads, T* x) const {
  turn(batch, length, heads, T{1}, x);
}

template <class T>
void Rotary<T>::backward(std::size_t batch, std::size_t length, std::size_t heads, T* d_x) const {
  turn(batch, length, heads, T{-1}, d_x);
}

template <class T>
void Rotary<T>::turn(std::size_t batch, std::size_t length, std::size_t heads, T direction, T* x) const {
  for (std::size_t row = 0; row < batch * length; ++row) {
    const T* cosine = cosine_.data() + row % length * half_;
    const T* sine = sine_.data() + row % length * half_;
    for (std::size_t head = 0; head < heads; ++head) {
      T* low = x + (row * heads + head) * 2 * half_;
      T* high = low + half_;
      for (std::size_t i = 0; i < half_; ++i) {
        const T a = low[i], b = high[i], s = direction * sine[i];
        low[i] = a * cosine[i] - b * s;
        high[i] = b * cosine[i] + a * s;
      }
    }
  }
}

template class Rotary<float>;
template class Rotary<double>;

}  // namespace troupe::apps::gpt
