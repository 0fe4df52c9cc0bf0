#include "actors/planes/step/declared_operations.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "actors/planes/step/declared_order.hpp"
#include "actors/planes/step/training_plan.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"
#include "core/program/trainer_operation.hpp"

namespace troupe::actors {

using core::DeclaredOperation;
using core::Errc;
using core::Result;

namespace {

constexpr core::GroupKind kGroups[] = {core::GroupKind::tp, core::GroupKind::cp, core::GroupKind::ep};

Result<core::GroupKind> group_of(const TrainingPlan& plan, const std::string& name) {
  std::vector<std::string_view> known;
  for (const auto kind : kGroups) {
    if (plan.mesh.group_size(kind) == 1) continue;
    if (core::name_of(kind) == name) return kind;
    known.push_back(core::name_of(kind));
  }
  return core::fail(Errc::invalid_argument,
                    "group '{}' is none of the axes along which this job is cut, which are {}; leave its "
                    "operations undeclared",
                    name, known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", ")));
}

Result<core::Counts> counts_of(const DeclaredOperation& declared, int members) {
  if (declared.counts.size() != static_cast<std::size_t>(members)) {
    return core::fail(Errc::invalid_argument, "it has counts of {} members, but {} has {}; give one for each",
                      declared.counts.size(), declared.group, members);
  }
  for (const auto count : declared.counts) {
    if (count >= 0) continue;
    return core::fail(Errc::invalid_argument, "a member puts in {} elements; give 0 or more", count);
  }
  auto counts = core::Counts::table(declared.counts);
  if (declared.bounded) counts.kind = core::CountKind::bounded;
  return counts;
}

Result<void> check_unit(const DeclaredOperation& declared, int units) {
  if (!declared.unit && units == 0) return {};
  if (declared.unit && static_cast<int>(declared.unit->value) < units) return {};
  const auto found = declared.unit ? fmt::format("in unit {}", declared.unit->value) : "in no unit";
  if (units == 0) {
    return core::fail(Errc::invalid_argument, "it is {}, but no parameter names a unit; leave the unit out",
                      found);
  }
  return core::fail(Errc::invalid_argument, "it is {}, but parameters name units 0 to {}; give one of these",
                    found, units - 1);
}

/// Everything but its point.
Result<core::TrainerOperation> checked(const TrainingPlan& plan, const DeclaredOperation& declared,
                                       int units) {
  if (declared.pass == core::Pass::weights) {
    return core::fail(Errc::invalid_argument,
                      "it is in the pass weights; operations are in forward or backward");
  }
  core::TrainerOperation operation{.kind = declared.kind, .dtype = declared.dtype};
  operation.group = TRY(group_of(plan, declared.group));
  operation.counts = TRY(counts_of(declared, plan.mesh.group_size(operation.group)));
  TRY(check_unit(declared, units));
  return operation;
}

std::vector<int> places_of(const std::vector<int>& units) {
  std::vector<int> places(units.size());
  for (std::size_t i = 0; i < units.size(); ++i) {
    places[static_cast<std::size_t>(units[i])] = static_cast<int>(i);
  }
  return places;
}

/// At which place of its pass each unit comes.
Result<core::UnitOrder> unit_places(const core::DeclaredOrder& order, int units) {
  auto [forward, backward] = TRY(normalised(order, units));
  if (forward.empty()) {
    forward.resize(static_cast<std::size_t>(units));
    std::iota(forward.begin(), forward.end(), 0);
    backward.assign(forward.rbegin(), forward.rend());
  }
  return core::UnitOrder{places_of(forward), places_of(backward)};
}

}  // namespace

Result<void> take_operations(TrainingPlan& plan, const std::vector<DeclaredOperation>& operations,
                             const core::DeclaredOrder& order, bool in_passes) {
  if (operations.empty()) return {};
  if (in_passes || plan.options.pipeline_parallel > 1) {
    return core::fail(Errc::invalid_argument,
                      "SessionOptions::operations belong to lanes that are played one after another, and a "
                      "pipeline stage has several at once; leave its operations undeclared");
  }
  const int units = named_units(plan);
  const auto places = TRY(unit_places(order, units));
  const int last_unit = static_cast<int>(plan.inputs.units.size()) - 1;
  const bool come_and_go = last_unit >= plan.resident_units;
  std::vector<std::pair<int, core::TrainerOperation>> placed;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const auto& declared = operations[i];
    auto operation = checked(plan, declared, units);
    if (!operation) {
      return core::fail(operation.error().code, "SessionOptions::operations[{}], {} on {}: {}", i,
                        core::name_of(declared.kind), core::quoted_excerpt(declared.group),
                        operation.error().message);
    }
    const bool is_forward = declared.pass == core::Pass::forward;
    operation->point.phase = is_forward ? core::Phase::forward : core::Phase::backward;
    operation->point.unit = is_forward ? 0 : last_unit;
    int place = 0;
    if (declared.unit) {
      if (come_and_go) operation->point.unit = static_cast<int>(declared.unit->value) + plan.resident_units;
      place = (is_forward ? places.forward : places.backward)[declared.unit->value];
    }
    placed.emplace_back(place, *std::move(operation));
  }
  std::stable_sort(placed.begin(), placed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [place, operation] : placed) plan.inputs.operations.push_back(std::move(operation));
  return {};
}

}  // namespace troupe::actors
