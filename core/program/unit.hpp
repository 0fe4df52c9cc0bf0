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
  resident,   ///< the model may read the parameters at any moment of a step
  on_demand,  ///< they are there from acquire to release, where they are sharded at all
};

/// What a step does with a unit. The same on all ranks; a unit that only some of them use counts as used, and
/// the others contribute zeros.
enum class UnitUse : std::uint8_t {
  none,
  forward,               ///< frozen, and no gradient passes through it
  forward_and_backward,  ///< also with frozen parameters, through which gradients pass
};

/// All parameters of a unit that are of one class, end to end, with the padding that its layout asks for.
struct FlatTensor {
  std::size_t tensor_class = 0;  ///< index among the classes of a program
  std::int64_t elements = 0;
  bool trainable = true;  ///< otherwise frozen: no gradient, no optimizer

  friend bool operator==(const FlatTensor&, const FlatTensor&) = default;
};

/// Parameters that are gathered together and reduced together. A unit may be without any.
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

/// Where a parameter lies: elements of tensor `tensor` of unit `unit`. Tied ones lie at one place.
struct ParameterHome {
  std::size_t unit = 0;
  std::size_t tensor = 0;
  ElementRange range;

  friend bool operator==(const ParameterHome&, const ParameterHome&) = default;
};

struct UnitCollection {
  std::vector<Unit> units;           ///< in the order of forward
  std::vector<ParameterHome> homes;  ///< of each parameter, in the order of the input
};

/// Lays out parameters by unit and class. `shards` are those of each class: the layout is such that every
/// shard of any role divides. Parameters without a unit, and tied ones that two units read, make a resident
/// unit in front of all others, which backward reaches last; the others' numbers then are one higher.
/// Errc::invalid_argument names the parameter that cannot be.
Result<UnitCollection> collect_units(std::span<const UnitParameter> parameters, std::size_t units,
                                     std::span<const TensorClass> classes, std::span<const int> shards);

}  // namespace troupe::core
