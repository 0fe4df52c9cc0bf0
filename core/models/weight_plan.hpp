#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/boxes/box.hpp"
#include "core/result.hpp"

namespace troupe::core {

struct PlannedTensor {
  std::string file;  ///< empty where somebody else decides
  std::string name;
  Shape shape;

  friend bool operator==(const PlannedTensor&, const PlannedTensor&) = default;
};

/// A box of an input that becomes a box of an output, of the same extent.
struct TensorPiece {
  std::size_t input = 0;
  Box from;
  Shape to;  ///< where it begins in the output

  Box target() const { return {to, from.extent}; }
  friend bool operator==(const TensorPiece&, const TensorPiece&) = default;
};

/// Which boxes of which inputs each output consists of. What no piece covers is zero.
struct WeightPlan {
  struct Output {
    PlannedTensor tensor;
    std::vector<TensorPiece> pieces;
  };
  std::vector<PlannedTensor> inputs;
  std::vector<Output> outputs;
};

/// The plan from `first`'s inputs to `second`'s outputs. Inputs of `second` are outputs of `first` by name.
/// Errc::mismatch names one that is not there or has another shape.
Result<WeightPlan> compose(const WeightPlan& first, const WeightPlan& second);

/// The way back: of several places that hold the same box of an input, the first counts. What was not in the
/// inputs, such as padding, is cut.
WeightPlan invert(const WeightPlan& plan);

/// Errc::invalid_argument names an output that the pieces do not cover exactly.
Result<void> check_covered(const WeightPlan& plan);

}  // namespace troupe::core
