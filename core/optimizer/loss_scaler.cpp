#include "core/optimizer/loss_scaler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

constexpr double kLargest = std::numeric_limits<float>::max();

bool is_scale(double value) {
  return value >= std::numeric_limits<float>::min() && value <= kLargest;
}

}  // namespace

Result<void> check(const LossScaling& settings) {
  const auto& [kind, scale, growth, interval, backoff, minimum, hysteresis] = settings;
  if (kind == LossScale::none) return {};
  if (!is_scale(scale)) {
    return fail(Errc::invalid_argument, "losses cannot be scaled by {}; give a number above 0 that f32 has",
                scale);
  }
  if (kind == LossScale::fixed) return {};
  if (!(growth > 1 && std::isfinite(growth)) || !(backoff > 0 && backoff < 1)) {
    return fail(
        Errc::invalid_argument,
        "a loss scale grows by a factor above 1 and backs off by one between 0 and 1, found {} and {}",
        growth, backoff);
  }
  if (!is_scale(minimum) || minimum > scale) {
    return fail(Errc::invalid_argument,
                "the least loss scale is above 0 and at most the first one, found {} and {}", minimum, scale);
  }
  if (interval < 1 || hysteresis < 1) {
    return fail(Errc::invalid_argument,
                "a loss scale grows after 1 step or more and backs off after 1 or more, found {} and {}",
                interval, hysteresis);
  }
  return {};
}

std::string describe(const LossScaling& settings) {
  switch (settings.kind) {
    case LossScale::none:
      return "loss scale none";
    case LossScale::fixed:
      return fmt::format("loss scale {}", settings.scale);
    case LossScale::dynamic:
      break;
  }
  return fmt::format("loss scale dynamic from {} growth {} interval {} backoff {} minimum {} hysteresis {}",
                     settings.scale, settings.growth, settings.interval, settings.backoff, settings.minimum,
                     settings.hysteresis);
}

LossScaler::LossScaler(const LossScaling& settings)
    : settings_(settings),
      state_{settings.kind == LossScale::none ? 1 : settings.scale, 0, settings.hysteresis} {}

void LossScaler::update(bool is_finite) {
  if (!is_dynamic()) return;
  auto& [scale, finite_steps, overflows_left] = state_;
  if (!is_finite) {
    finite_steps = 0;
    overflows_left = std::max<std::int64_t>(0, overflows_left - 1);
    if (overflows_left == 0) scale = std::max(scale * settings_.backoff, settings_.minimum);
    return;
  }
  if (++finite_steps < settings_.interval) return;
  finite_steps = 0;
  overflows_left = settings_.hysteresis;
  if (scale * settings_.growth <= kLargest) scale *= settings_.growth;
}

Result<void> LossScaler::restore(State state) {
  if (!is_dynamic()) return {};
  if (!is_scale(state.scale) || state.finite_steps < 0 || state.overflows_left < 0) {
    return fail(
        Errc::mismatch,
        "the checkpoint has a loss scale of {} after {} finite steps, with {} overflows left, which no "
        "session saved; restore weights only to begin anew",
        state.scale, state.finite_steps, state.overflows_left);
  }
  // State saved with another interval or hysteresis is clamped to the present ones.
  state.finite_steps = std::min<std::int64_t>(state.finite_steps, settings_.interval - 1);
  state.overflows_left = std::min<std::int64_t>(state.overflows_left, settings_.hysteresis);
  state_ = state;
  return {};
}

}  // namespace troupe::core
