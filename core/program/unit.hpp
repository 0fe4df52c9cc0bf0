#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/program/tensor_class.hpp"

namespace troupe::core {

enum class Residency : std::uint8_t {
  resident,   ///< the model may read the parameters at any time in a step
  on_demand,  ///< if sharded, the parameters are available from acquire to release only
};

/// What a step does with a unit, on all ranks. A unit that only some ranks use counts as used, and the
/// others contribute zeros.
enum class UnitUse : std::uint8_t {
  none,
  forward,               ///< frozen, and no gradient passes through it
  forward_and_backward,  ///< also with frozen parameters that gradients pass through
};

/// All parameters of one class in a unit, contiguous, with the padding that its layout requires.
struct FlatTensor {
  std::size_t tensor_class = 0;  ///< index in the classes of a program
  std::int64_t elements = 0;
  bool trainable = true;  ///< if false, frozen: no gradient, no optimizer

  friend bool operator==(const FlatTensor&, const FlatTensor&) = default;
};

/// Parameters that are gathered together and reduced together. A unit may have none.
struct Unit {
  Residency residency = Residency::on_demand;
  UnitUse use = UnitUse::forward_and_backward;
  std::vector<FlatTensor> tensors;

  friend bool operator==(const Unit&, const Unit&) = default;
};

}  // namespace troupe::core
