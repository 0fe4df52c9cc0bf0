#pragma once

#include <vector>

namespace troupe::apps::gpt {

/// How rotary angles grow with the position in a model that was extended to longer texts, by the formulas of
/// transformers (modeling_rope_utils.py).
struct RotaryScaling {
  enum class Kind {
    none,
    linear,    ///< all angles are divided by the factor
    llama3,    ///< slow ones are divided, fast ones are not, those between are interpolated
    yarn,      ///< as above, by the numbers of pairs
    longrope,  ///< each is divided by a factor of its own
  };
  Kind kind = Kind::none;
  double factor = 1;
  /// For llama3: wavelengths above original_context / low_frequency are slow, those below original_context /
  /// high_frequency are fast.
  double low_frequency = 1;
  double high_frequency = 4;
  double original_context = 8192;
  /// For yarn: pairs that make more turns than this in original_context are fast,
  double fast_turns = 32;
  double slow_turns = 1;    ///< and those that make fewer are slow;
  bool whole_pairs = true;  ///< the borders between them are rounded to whole pairs.
  /// For yarn and longrope: cosines and sines are multiplied by it.
  double attention_factor = 1;
  /// For longrope, one per pair: of a context up to original_context, and of longer ones.
  std::vector<double> short_factors{};
  std::vector<double> long_factors{};

  friend bool operator==(const RotaryScaling&, const RotaryScaling&) = default;
};

}  // namespace troupe::apps::gpt
