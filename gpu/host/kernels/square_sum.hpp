#pragma once

#include <cstdint>
#include <span>

#include "core/exact_sum.hpp"
#include "gpu/host/kernels/instructions.hpp"

namespace troupe::gpu {

/// Adds squares as core::ExactSquareSum::accumulate() does, with the same bits, several times as fast. Values
/// may come in any number of calls; those of one object should be near each other in memory.
class SquareAdder {
 public:
  explicit SquareAdder(core::ExactSquareSum& sum, InstructionSet instructions = best_instruction_set())
      : sum_(sum), instructions_(instructions) {}

  /// `is_cached`: the values were just written, so that nothing needs to be fetched ahead.
  void add(std::span<const float> values, bool is_cached = false);
  /// Codes of bf16.
  void add_bf16(std::span<const std::uint16_t> codes);

 private:
  template <class Value>
  void add_values(std::span<const Value> values, bool is_cached);
  template <class Engine, class Value>
  void add_blocks(std::span<const Value> values, bool is_cached);
  template <class Engine, class Value>
  void add_block(std::span<const Value> block, bool is_cached);
  template <class Engine>
  void add_by_windows(std::span<const float> block);
  void add_below(std::span<const float> block, std::uint32_t end);

  core::ExactSquareSum& sum_;
  InstructionSet instructions_;
  int lowest_ = 100;           ///< exponent field of the smallest values in the window of the last block
  bool is_wide_ = false;       ///< the last block did not fit into one window
  bool is_scattered_ = false;  ///< nor, by far, into two
};

}  // namespace troupe::gpu
