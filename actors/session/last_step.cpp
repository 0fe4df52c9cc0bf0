#include "actors/session/last_step.hpp"

#include <array>
#include <cstdint>
#include <utility>

#include "core/errors.hpp"
#include "core/step_count.hpp"

namespace troupe::actors {

namespace {

struct Number {
  const char* name;
  double StepOutcome::*value;
};
constexpr std::array kNumbers{Number{"loss", &StepOutcome::loss},
                              Number{"weight", &StepOutcome::weight},
                              Number{"gradient_norm", &StepOutcome::gradient_norm},
                              Number{"clip_factor", &StepOutcome::clip_factor},
                              Number{"usual_norm", &StepOutcome::usual_norm},
                              Number{"loss_scale", &StepOutcome::loss_scale}};

}  // namespace

core::Value value_of(const StepOutcome& outcome) {
  core::Value::Map values{{"committed", outcome.committed},
                          {"reason", outcome.reason},
                          {"nonfinite_gradients", outcome.nonfinite_gradients},
                          {"wishes", static_cast<std::int64_t>(outcome.wishes)}};
  for (const auto& [name, value] : kNumbers) values.set(name, outcome.*value);
  return values;
}

core::Result<std::optional<StepOutcome>> last_step_of(const core::Value* value, core::StepCount over) {
  if (value == nullptr) return std::optional<StepOutcome>{};
  StepOutcome outcome;
  outcome.step = core::last_step(over);
  const auto *committed = value->find("committed"), *reason = value->find("reason"),
             *nonfinite = value->find("nonfinite_gradients"), *wishes = value->find("wishes");
  bool is_whole = committed != nullptr && committed->as_bool() && reason != nullptr && reason->as_string() &&
                  nonfinite != nullptr && nonfinite->as_int() && wishes != nullptr && wishes->as_int();
  for (const auto& [name, member] : kNumbers) {
    const auto* number = value->find(name);
    is_whole = is_whole && number != nullptr && number->as_double();
    outcome.*member = is_whole ? *number->as_double() : 0;
  }
  if (!is_whole)
    return core::fail(
        core::Errc::mismatch,
        "expected what was decided on step {} in '{}' of the common values; restore weights only to "
        "begin anew",
        outcome.step.value, kLastStepKey);
  outcome.committed = *committed->as_bool();
  outcome.reason = *reason->as_string();
  outcome.nonfinite_gradients = *nonfinite->as_int();
  outcome.wishes = static_cast<std::uint32_t>(*wishes->as_int());
  return std::optional(std::move(outcome));
}

}  // namespace troupe::actors
