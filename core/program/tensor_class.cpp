#include "core/program/tensor_class.hpp"

#include <algorithm>
#include <tuple>

#include "core/enum_names.hpp"
#include "core/errors.hpp"

namespace troupe::core {
namespace {

constexpr auto kScaleNames = enum_names<ScaleRule>("dense", "expert");

}  // namespace

std::string_view name_of(ScaleRule rule) noexcept {
  return kScaleNames[rule];
}

Result<Domain> domain_of(const Mesh& mesh, ScaleRule scale, std::size_t axes) {
  const bool expert = scale == ScaleRule::expert;
  const int copies = mesh.sizes().optimizer_instances;
  if (axes < 1 || axes > 2) {
    return fail(Errc::invalid_argument, "a domain has one or two data-parallel axes, not {}", axes);
  }
  if (axes == 1 && copies > 1) {
    return fail(Errc::invalid_argument,
                "one data-parallel axis has no room for {} copies of the optimizer; use placements over two "
                "axes, or 1 copy",
                copies);
  }
  Domain domain{.axes = {}, .sizes = {}, .scale = scale};
  if (axes == 1) {
    domain.axes = {expert ? GroupKind::edp : GroupKind::dp_cp};
    domain.sizes = {mesh.group_size(domain.axes[0])};
    return domain;
  }
  domain.axes = {GroupKind::inter_instance, expert ? GroupKind::intra_edp : GroupKind::intra_dp_cp};
  domain.sizes = {copies, mesh.group_size(expert ? GroupKind::edp : GroupKind::dp_cp) / copies};
  return domain;
}

std::vector<int> coordinates_in(const Domain& domain, const Mesh& mesh, Rank rank) {
  const bool expert = domain.scale == ScaleRule::expert;
  int place = mesh.place_in_group(expert ? GroupKind::edp : GroupKind::dp_cp, rank);
  std::vector<int> coordinates(domain.sizes.size());
  for (std::size_t axis = domain.sizes.size(); axis-- > 0;) {
    coordinates[axis] = place % domain.sizes[axis];
    place /= domain.sizes[axis];
  }
  return coordinates;
}

Result<void> check_gathered(const TensorClass& tensor_class) {
  const auto& [gathered, storage, main] =
      std::tie(tensor_class.gathered, tensor_class.storage, tensor_class.main);
  if (is_mx_element(storage)) {
    return fail(Errc::invalid_argument,
                "parameters cannot be stored as {}; store them as bf16, and gather them in it",
                name_of(storage));
  }
  if (!gathered || (is_mx_element(*gathered) && storage == DType::bf16 && main == DType::f32)) return {};
  return fail(Errc::invalid_argument,
              "parameters of {} with main values in {} cannot be gathered as {}; bf16 parameters with main "
              "values in f32 can be, as f8_e4m3 or f8_e5m2",
              name_of(storage), name_of(main), name_of(*gathered));
}

std::int64_t OptimizerNeeds::state_bytes() const {
  std::int64_t bytes = 0;
  for (const DType state : states) bytes += static_cast<std::int64_t>(size_of(state));
  return bytes;
}

}  // namespace troupe::core
