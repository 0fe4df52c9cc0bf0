#include "core/program/unit.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/errors.hpp"
#include "core/layout/buffer_layout.hpp"
#include "core/layout/row_layout.hpp"

namespace troupe::core {
namespace {

/// Physical parameters of one unit that share flat tensors.
struct Kin {
  std::size_t tensor_class = 0;
  bool trainable = true;
  std::vector<std::size_t> parameters;
};

class Collector {
 public:
  Collector(std::span<const UnitParameter> parameters, std::size_t units,
            std::span<const TensorClass> classes, std::span<const int> shards)
      : parameters_(parameters), units_(units), classes_(classes), shards_(shards) {}

  Result<UnitCollection> collect() {
    TRY(check());
    find_owners();
    UnitCollection collection;
    collection.homes.resize(parameters_.size());
    const bool outside = std::find(owner_.begin(), owner_.end(), std::nullopt) != owner_.end();
    if (outside) TRY(add_unit(collection, std::nullopt, Residency::resident));
    for (std::size_t unit = 0; unit < units_; ++unit) TRY(add_unit(collection, unit, Residency::on_demand));
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].tied_to) collection.homes[i] = collection.homes[root_of(i)];
    }
    return collection;
  }

 private:
  Result<void> check() const {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const UnitParameter& p = parameters_[i];
      if (p.tensor_class >= classes_.size() || p.tensor_class >= shards_.size()) {
        return fail(Errc::invalid_argument, "parameter {} is of class {}, but there are {} classes", p.name,
                    p.tensor_class, std::min(classes_.size(), shards_.size()));
      }
      if (p.unit && *p.unit >= units_) {
        return fail(Errc::invalid_argument, "parameter {} is in unit {}, but there are {} units", p.name,
                    *p.unit, units_);
      }
      if (!p.tied_to) continue;
      if (*p.tied_to >= i) {
        return fail(Errc::invalid_argument,
                    "parameter {} is tied to parameter {}, which is not registered before it; tie the later "
                    "one to the earlier one",
                    p.name, *p.tied_to);
      }
      const UnitParameter& other = parameters_[*p.tied_to];
      if (p.shape != other.shape || p.tensor_class != other.tensor_class || p.trainable != other.trainable) {
        return fail(Errc::invalid_argument,
                    "parameters {} and {} are tied, but differ in shape, class or whether they are trained; "
                    "make them agree or do not tie them",
                    p.name, other.name);
      }
    }
    return {};
  }

  std::size_t root_of(std::size_t parameter) const {
    while (parameters_[parameter].tied_to) parameter = *parameters_[parameter].tied_to;
    return parameter;
  }

  /// A parameter that two units read belongs to neither.
  void find_owners() {
    for (const UnitParameter& parameter : parameters_) owner_.push_back(parameter.unit);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (owner_[root_of(i)] != parameters_[i].unit) owner_[root_of(i)] = std::nullopt;
    }
    for (std::size_t i = 0; i < parameters_.size(); ++i) owner_[i] = owner_[root_of(i)];
  }

  Result<void> add_unit(UnitCollection& collection, std::optional<std::size_t> unit, Residency residency) {
    const std::size_t index = collection.units.size();
    collection.units.push_back({.residency = residency});
    std::vector<Kin> families;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const UnitParameter& p = parameters_[i];
      if (p.tied_to || owner_[i] != unit) continue;
      auto family = std::find_if(families.begin(), families.end(), [&](const Kin& kin) {
        return kin.tensor_class == p.tensor_class && kin.trainable == p.trainable;
      });
      if (family == families.end()) family = families.insert(family, {p.tensor_class, p.trainable, {}});
      family->parameters.push_back(i);
    }
    for (const Kin& family : families) TRY(lay_out(collection, index, family));
    return {};
  }

  Result<void> lay_out(UnitCollection& collection, std::size_t unit, const Kin& family) {
    const LayoutPolicy policy = classes_[family.tensor_class].layout;
    const int shards = shards_[family.tensor_class];
    auto& tensors = collection.units[unit].tensors;
    if (policy == LayoutPolicy::row_aligned) {
      std::vector<std::vector<std::int64_t>> shapes;
      for (const std::size_t i : family.parameters) shapes.push_back(parameters_[i].shape);
      const auto rows = TRY(row_aligned_layout(shapes, shards));
      for (std::size_t k = 0; k < family.parameters.size(); ++k) {
        const auto elements = elements_of(family.parameters[k]);
        collection.homes[family.parameters[k]] = {
            unit, tensors.size(), {rows.offsets[k], rows.offsets[k] + elements}};
      }
      tensors.push_back({family.tensor_class, rows.elements, family.trainable});
      return {};
    }
    std::vector<LayoutParameter> members;
    for (const std::size_t i : family.parameters) {
      const auto& shape = parameters_[i].shape;
      LayoutParameter member{.elements = elements_of(i), .shared_embedding = parameters_[i].shared_embedding};
      if (shape.size() == 2) {
        member.rows = shape[0];
        member.columns = shape[1];
      }
      members.push_back(member);
    }
    const auto layout = TRY(buffer_layout(policy, members,
                                          {.bucket_size = std::nullopt,
                                           .shards = shards,
                                           .part_multiple = classes_[family.tensor_class].part_multiple()}));
    for (std::size_t k = 0; k < members.size(); ++k) {
      const ParameterPlace& place = layout.parameters[k];
      const std::int64_t start = layout.buckets[static_cast<std::size_t>(place.bucket)].start;
      collection.homes[family.parameters[k]] = {unit,
                                                tensors.size() + static_cast<std::size_t>(place.bucket),
                                                {place.start - start, place.end - start}};
    }
    for (const BucketPlace& bucket : layout.buckets) {
      tensors.push_back({family.tensor_class, bucket.size(), family.trainable});
    }
    return {};
  }

  std::int64_t elements_of(std::size_t parameter) const {
    const auto& shape = parameters_[parameter].shape;
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }

  std::span<const UnitParameter> parameters_;
  std::size_t units_;
  std::span<const TensorClass> classes_;
  std::span<const int> shards_;
  std::vector<std::optional<std::size_t>> owner_;  // the unit of each parameter; none: resident
};

}  // namespace

Result<UnitCollection> collect_units(std::span<const UnitParameter> parameters, std::size_t units,
                                     std::span<const TensorClass> classes, std::span<const int> shards) {
  return Collector(parameters, units, classes, shards).collect();
}

}  // namespace troupe::core
