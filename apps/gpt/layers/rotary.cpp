#include "apps/gpt/layers/rotary.hpp"

#include <cmath>
#include <numbers>
#include <numeric>

namespace troupe::apps::gpt {

namespace {

// The angle of one position, scaled as transformers does it (modeling_rope_utils.py).
double scaled(double angle, const RotaryScaling& scaling) {
  if (scaling.kind == RotaryScaling::Kind::none) return angle;
  if (scaling.kind == RotaryScaling::Kind::linear) return angle / scaling.factor;
  const double turns = scaling.original_context * angle / (2 * std::numbers::pi);
  if (turns < scaling.low_frequency) return angle / scaling.factor;
  if (turns > scaling.high_frequency) return angle;
  const double smooth = (turns - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency);
  return (1 - smooth) * angle / scaling.factor + smooth * angle;
}

std::vector<std::size_t> first_positions(std::size_t context) {
  std::vector<std::size_t> positions(context);
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

}  // namespace

template <class T>
Rotary<T>::Rotary(std::size_t context, std::size_t head_size, double base, const RotaryScaling& scaling)
    : Rotary(first_positions(context), head_size, base, scaling) {}

template <class T>
Rotary<T>::Rotary(std::span<const std::size_t> positions, std::size_t head_size, double base,
                  const RotaryScaling& scaling)
    : half_(head_size / 2) {
  cosine_.reserve(positions.size() * half_);
  sine_.reserve(positions.size() * half_);
  for (const std::size_t position : positions) {
    for (std::size_t i = 0; i < half_; ++i) {
      const double exponent = -static_cast<double>(i) / static_cast<double>(half_);
      const double angle = static_cast<double>(position) * scaled(std::pow(base, exponent), scaling);
      cosine_.push_back(static_cast<T>(std::cos(angle)));
      sine_.push_back(static_cast<T>(std::sin(angle)));
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
