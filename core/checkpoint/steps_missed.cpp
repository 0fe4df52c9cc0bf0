#include "core/checkpoint/steps_missed.hpp"

#include <optional>
#include <variant>

#include "core/errors.hpp"

namespace troupe::core {

Value value_of(const StepsMissed& missed) {
  Value::Map map;
  for (const auto& [name, steps] : missed) map.set(name, steps);
  return map;
}

Result<StepsMissed> steps_missed_in(const Value* value, StepCount steps) {
  StepsMissed missed;
  if (value == nullptr) return missed;
  const auto* map = value->as_map();
  if (map == nullptr)
    return fail(Errc::mismatch, "expected a map '{}' in the common values, found {}", kStepsMissedKey,
                value->type_name());
  for (const auto& [key, count] : map->entries()) {
    const auto* name = std::get_if<std::string>(&key);
    const auto number = count.as_int();
    if (name == nullptr || !number || *number < 0 || *number > steps.value)
      return fail(Errc::mismatch,
                  "'{}' of the common values has something at {} that is not a number from 0 to {}",
                  kStepsMissedKey, to_string(key), steps.value);
    if (*number > 0) missed.emplace(*name, *number);
  }
  return missed;
}

Result<std::vector<std::int64_t>> steps_missed_by(std::span<const ParameterSpec> parameters,
                                                  const StepsMissed& missed) {
  std::vector<std::int64_t> by_parameter;
  if (missed.empty()) return by_parameter;
  for (const auto& parameter : parameters) {
    std::optional<std::int64_t> of_parts;
    for (const auto& part : TRY(parameter.stored_parts())) {
      const auto found = missed.find(part.key);
      const auto steps = found == missed.end() ? 0 : found->second;
      if (of_parts && *of_parts != steps)
        return fail(
            Errc::mismatch,
            "the optimizer missed {} steps of one stored part of parameter '{}' and {} of '{}', and a "
            "parameter is stepped as a whole",
            *of_parts, parameter.name, steps, part.key);
      of_parts = steps;
    }
    by_parameter.push_back(of_parts.value_or(0));
  }
  return by_parameter;
}

}  // namespace troupe::core
