#pragma once

#include <cstdint>
#include <string>

#include "core/options/options.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Errc::invalid_argument names the setting that is out of range.
Result<void> check(const LossScaling& settings);
/// One line; it differs if the settings differ.
std::string describe(const LossScaling& settings);

/// The factor of the next step's losses. It depends only on the settings and on which steps had gradients
/// that were NaN or Inf, so ranks that see the same have the same scale. Works like Megatron-Core's
/// DynamicGradScaler; with a hysteresis of 1 like torch.amp.GradScaler.
class LossScaler {
 public:
  /// The settings must be valid.
  explicit LossScaler(const LossScaling& settings);

  double scale() const { return state_.scale; }
  /// Called after a step whose gradients were measured.
  void update(bool is_finite);

  /// The scaler's state in a checkpoint.
  struct State {
    double scale = 1;
    std::int64_t finite_steps = 0;    ///< in a row
    std::int64_t overflows_left = 1;  ///< until the scale is reduced
    friend bool operator==(const State&, const State&) = default;
  };
  /// Whether the scale changes from step to step.
  bool is_dynamic() const { return settings_.kind == LossScale::dynamic; }
  const State& state() const { return state_; }
  /// Does nothing unless the scale is dynamic. Errc::mismatch for anything that is not a scaler's state.
  Result<void> restore(State state);

 private:
  LossScaling settings_;
  State state_;
};

}  // namespace troupe::core
