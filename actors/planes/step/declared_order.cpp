#include "actors/planes/step/declared_order.hpp"

#include <algorithm>
#include <numeric>

#include "actors/planes/step/training_plan.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

namespace {

/// The first parameter of each unit, which identifies it in messages.
std::string listed_units(const TrainingPlan& plan, int units) {
  std::string text;
  for (int unit = 0; unit < units; ++unit) {
    const auto found = std::find_if(plan.specs.begin(), plan.specs.end(), [&](const auto& spec) {
      return spec.unit && static_cast<int>(spec.unit->value) == unit;
    });
    if (found == plan.specs.end()) continue;
    text += fmt::format("{}{} of {}", text.empty() ? "" : ", ", unit, found->name);
    constexpr std::size_t kLongest = 400;
    if (text.size() > kLongest) return text + ", ...";
  }
  return text.empty() ? "none" : text;
}

std::vector<int> numbers_of(const std::vector<core::UnitIndex>& units) {
  std::vector<int> numbers;
  for (const auto unit : units) numbers.push_back(static_cast<int>(unit.value));
  return numbers;
}

}  // namespace

int named_units(const TrainingPlan& plan) {
  int units = 0;
  for (const auto& spec : plan.specs) {
    if (spec.unit) units = std::max(units, static_cast<int>(spec.unit->value) + 1);
  }
  return units;
}

core::Result<core::UnitOrder> normalised(const core::DeclaredOrder& order, int units) {
  return core::normalised({numbers_of(order.forward), numbers_of(order.backward)}, units);
}

core::Result<void> take_order(TrainingPlan& plan, const core::DeclaredOrder& order,
                              const std::vector<core::UnitPass>& passes) {
  if (order.empty()) return {};
  if (!passes.empty()) {
    return core::fail(core::Errc::invalid_argument,
                      "SessionOptions::order was given beside a list of passes, which goes through units by "
                      "their numbers; give one of the two");
  }
  const int units = named_units(plan);
  const auto given = normalised(order, units);
  if (!given) {
    return core::fail(given.error().code, "SessionOptions::order: {}; units of parameters: {}",
                      given.error().message, listed_units(plan, units));
  }
  const int resident = plan.resident_units;
  if (given->empty() || static_cast<int>(plan.inputs.units.size()) == resident) return {};
  auto& [forward, backward] = plan.inputs.order;
  forward.resize(static_cast<std::size_t>(resident));
  std::iota(forward.begin(), forward.end(), 0);
  for (const int unit : given->forward) forward.push_back(unit + resident);
  for (const int unit : given->backward) backward.push_back(unit + resident);
  for (int unit = resident; unit-- > 0;) backward.push_back(unit);
  return {};
}

}  // namespace troupe::actors
