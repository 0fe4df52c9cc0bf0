#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "core/ids.hpp"
#include "core/layout/buffer_layout.hpp"
#include "core/mx_blocks.hpp"
#include "core/plan/mesh.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Which of the two factors of core/plan/scaling.hpp multiplies the gradients of a domain.
enum class ScaleRule : std::uint8_t { dense, expert };
std::string_view name_of(ScaleRule rule) noexcept;

/// The ranks that together hold one copy of a tensor's state: one or two data-parallel axes, each with its
/// process group and its size, outermost first.
struct Domain {
  std::vector<GroupKind> axes;
  std::vector<int> sizes;
  ScaleRule scale = ScaleRule::dense;

  friend bool operator==(const Domain&, const Domain&) = default;
};

/// The dense domain (dp_cp) or that of experts (edp), as one axis, or as two: the outer one across the copies
/// counted by mesh.sizes().optimizer_instances, and the inner one within a copy. Errc::invalid_argument for
/// other numbers of axes, and for one axis if the mesh has several copies.
Result<Domain> domain_of(const Mesh& mesh, ScaleRule scale, std::size_t axes);

/// A rank's coordinates on the axes of a domain.
std::vector<int> coordinates_in(const Domain& domain, const Mesh& mesh, Rank rank);

/// What an optimizer keeps for each element it steps, in addition to the main value.
struct OptimizerNeeds {
  std::string name = "sgd";
  std::vector<DType> states;  ///< for each kind of state: f32 twice for Adam

  std::int64_t state_bytes() const;  ///< per element
  friend bool operator==(const OptimizerNeeds&, const OptimizerNeeds&) = default;
};

/// A group besides the data-parallel axes, whose ranks keep the same values but each see only a part of what
/// the gradients come from: so gradients are summed over it, too.
struct AlsoSum {
  GroupKind group = GroupKind::tp;
  int members = 2;

  friend bool operator==(const AlsoSum&, const AlsoSum&) = default;
};

/// The dtype in which gradients are sent: `wire` if it is narrower than theirs.
inline DType sent_dtype(DType gradient, DType wire) {
  return size_of(wire) < size_of(gradient) ? wire : gradient;
}

/// Tensors that are treated alike.
struct TensorClass {
  DType storage = DType::f32;   ///< as the model reads them and as they are gathered
  DType gradient = DType::f32;  ///< gradients are accumulated in this dtype
  /// Gradients are sent in this dtype; see plan_program() for how a narrow one affects bits.
  DType wire = DType::f32;
  DType main = DType::f32;  ///< the optimizer steps values of this dtype; no separate copy if it is `storage`
  std::size_t domain = 0;   ///< index in the domains of a program
  LayoutPolicy layout = LayoutPolicy::padded;
  OptimizerNeeds optimizer;
  std::optional<AlsoSum> also_sum;
  /// Parameters are gathered in microscaling blocks (core/mx_blocks.hpp) with elements of this dtype, f8_e4m3
  /// or f8_e5m2, and have values that blocks can represent; none: gathered as stored. For bf16 with f32 main
  /// values.
  std::optional<DType> gathered;

  /// Parts of a flat tensor are multiples of this many elements.
  std::int64_t part_multiple() const { return gathered ? kMxPartElements : kShardAlignment; }
  /// Gradients are rounded before they are sent.
  bool has_narrow_wire() const { return size_of(wire) < size_of(gradient); }

  friend bool operator==(const TensorClass&, const TensorClass&) = default;
};

/// Errc::invalid_argument says what is required of values that are gathered in blocks, if it is not met.
Result<void> check_gathered(const TensorClass& tensor_class);

}  // namespace troupe::core
