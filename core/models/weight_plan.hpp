#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/boxes/box.hpp"
#include "core/result.hpp"

namespace troupe::core {

struct PlannedTensor {
  std::string file;  ///< empty where the caller decides
  std::string name;
  Shape shape;

  friend bool operator==(const PlannedTensor&, const PlannedTensor&) = default;
};

/// A box of an input that becomes a box of the same extent in an output.
struct TensorPiece {
  std::size_t input = 0;
  Box from;
  Shape to;  ///< where it begins in the output

  Box target() const { return {to, from.extent}; }
  friend bool operator==(const TensorPiece&, const TensorPiece&) = default;
};

/// The boxes of inputs that each output consists of. Elements that no piece covers are zero.
struct WeightPlan {
  struct Output {
    PlannedTensor tensor;
    std::vector<TensorPiece> pieces;
  };
  std::vector<PlannedTensor> inputs;
  std::vector<Output> outputs;
};

/// The plan from `first`'s inputs to `second`'s outputs. Inputs of `second` are outputs of `first`, matched
/// by name. Errc::mismatch names one that is missing or has another shape.
Result<WeightPlan> compose(const WeightPlan& first, const WeightPlan& second);

/// The reverse plan: if several places hold the same box of an input, the first one is used. Elements that do
/// not come from the inputs, such as padding, are dropped.
WeightPlan invert(const WeightPlan& plan);

}  // namespace troupe::core
