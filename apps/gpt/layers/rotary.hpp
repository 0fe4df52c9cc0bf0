#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "apps/gpt/layers/rotary_scaling.hpp"

namespace troupe::apps::gpt {

// B batch, T length, H heads, D head size.

/// Rotary positions in Hugging Face's arrangement: element i of a head is rotated together with element i +
/// D/2, by the angle position * base^(-2i/D), which a scaling makes smaller. Some scalings stretch it too.
template <class T>
class Rotary {
 public:
  Rotary(std::size_t context, std::size_t head_size, double base, const RotaryScaling& scaling = {});
  /// Row t of a sequence is at positions[t]; whole sequences have `context` tokens.
  Rotary(std::span<const std::size_t> positions, std::size_t context, std::size_t head_size, double base,
         const RotaryScaling& scaling);

  /// x (B, T, H, D) in place; row t of a sequence is at position t unless others were given.
  void forward(std::size_t batch, std::size_t length, std::size_t heads, T* x) const;
  /// The gradient, in place: the reverse rotation.
  void backward(std::size_t batch, std::size_t length, std::size_t heads, T* d_x) const;

  /// (context, D/2): for the angle of a position and a pair, times the scaling's attention factor.
  std::span<const T> cosine() const { return cosine_; }
  std::span<const T> sine() const { return sine_; }

 private:
  void turn(std::size_t batch, std::size_t length, std::size_t heads, T direction, T* x) const;

  std::size_t half_;
  std::vector<T> cosine_;  // (context, D/2)
  std::vector<T> sine_;    // (context, D/2)
};

}  // namespace troupe::apps::gpt
