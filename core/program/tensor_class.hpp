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
/// process group and the size of it, outermost first.
struct Domain {
  std::vector<GroupKind> axes;
  std::vector<int> sizes;
  ScaleRule scale = ScaleRule::dense;

  friend bool operator==(const Domain&, const Domain&) = default;
};

/// The dense domain (dp_cp) or that of experts (edp), as one axis, or as two: the outer one across the
/// copies that mesh.sizes().optimizer_instances counts, and the inner one within a copy.
/// Errc::invalid_argument for other numbers of axes, and for one axis of a mesh with several copies.
Result<Domain> domain_of(const Mesh& mesh, ScaleRule scale, std::size_t axes);

/// Where a rank stands on the axes of a domain.
std::vector<int> coordinates_in(const Domain& domain, const Mesh& mesh, Rank rank);

/// What an optimizer keeps for each element it steps, beside the main value.
struct OptimizerNeeds {
  std::string name = "sgd";
  std::vector<DType> states;  ///< of each kind of state: two times f32 for Adam

  std::int64_t state_bytes() const;  ///< of one element
  friend bool operator==(const OptimizerNeeds&, const OptimizerNeeds&) = default;
};

/// A group beyond the data-parallel axes, of ranks that keep the same values and each see a part of what
/// their gradients are of: so these are sums over it, too.
struct AlsoSum {
  GroupKind group = GroupKind::tp;
  int members = 2;

  friend bool operator==(const AlsoSum&, const AlsoSum&) = default;
};

/// What gradients are sent in: `wire` where it is narrower than they are.
inline DType sent_dtype(DType gradient, DType wire) {
  return size_of(wire) < size_of(gradient) ? wire : gradient;
}

/// Tensors that are treated alike.
struct TensorClass {
  DType storage = DType::f32;   ///< as the model reads them and as they are gathered
  DType gradient = DType::f32;  ///< gradients are accumulated in it
  /// Gradients are sent in it; see plan_program() for what a narrow one means for bits.
  DType wire = DType::f32;
  DType main = DType::f32;  ///< the optimizer steps values of it; no copy of their own where it is `storage`
  std::size_t domain = 0;   ///< index among the domains of a program
  LayoutPolicy layout = LayoutPolicy::padded;
  OptimizerNeeds optimizer;
  std::optional<AlsoSum> also_sum;
  /// Parameters are gathered in microscaling blocks (core/mx_blocks.hpp) whose elements are of it, f8_e4m3 or
  /// f8_e5m2, and their values are such as blocks hold; none: as they are stored. Of bf16 with f32 main
  /// values.
  std::optional<DType> gathered;

  /// Parts of a flat tensor are multiples of so many elements.
  std::int64_t part_multiple() const { return gathered ? kMxPartElements : 1; }
  /// Gradients are rounded before they are sent.
  bool has_narrow_wire() const { return size_of(wire) < size_of(gradient); }

  friend bool operator==(const TensorClass&, const TensorClass&) = default;
};

/// Errc::invalid_argument says what values that are gathered in blocks have to be, where they are not.
Result<void> check_gathered(const TensorClass& tensor_class);

}  // namespace troupe::core
