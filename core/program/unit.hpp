#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/program/tensor_class.hpp"
#include "core/result.hpp"

namespace troupe::core {

enum class Residency : std::uint8_t {
  resident,   ///< the model may read the parameters at any time in a step
  on_demand,  ///< if sharded, the parameters are available from acquire to release only
};

/// What a step does with a unit. The same on all ranks; a unit that only some ranks use counts as used, and
/// the others contribute zeros.
enum class UnitUse : std::uint8_t {
  none,
  forward,               ///< frozen, and no gradient passes through it
  forward_and_backward,  ///< also with frozen parameters that gradients pass through
};

/// All parameters of a unit that are of one class, contiguous, with the padding that its layout requires.
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

/// A parameter as a trainer registers it.
struct UnitParameter {
  std::string name;
  std::vector<std::int64_t> shape;
  std::size_t tensor_class = 0;
  std::optional<std::size_t> unit;     ///< in the order of forward; none: read from anywhere
  std::optional<std::size_t> tied_to;  ///< an earlier parameter: the same memory under another name
  bool trainable = true;
  bool shared_embedding = false;
};

/// Where a parameter is: elements of tensor `tensor` of unit `unit`. Tied parameters have the same place.
struct ParameterHome {
  std::size_t unit = 0;
  std::size_t tensor = 0;
  ElementRange range;

  friend bool operator==(const ParameterHome&, const ParameterHome&) = default;
};

struct UnitCollection {
  std::vector<Unit> units;           ///< in the order of forward
  std::vector<ParameterHome> homes;  ///< for each parameter, in the order of the input
};

/// Lays out parameters by unit and class. `shards` has one entry per class: the layout is such that every
/// shard of every role divides it. Parameters without a unit, and tied ones that two units read, form a
/// resident unit before all others, which backward reaches last; the numbers of the others are then one
/// higher. Errc::invalid_argument names the invalid parameter.
Result<UnitCollection> collect_units(std::span<const UnitParameter> parameters, std::size_t units,
                                     std::span<const TensorClass> classes, std::span<const int> shards);

}  // namespace troupe::core
