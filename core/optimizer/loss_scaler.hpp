#pragma once

#include <cstdint>
#include <string>

#include "core/options/options.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Errc::invalid_argument names the setting that is out of its range.
Result<void> check(const LossScaling& settings);
/// One line, in which settings that differ differ.
std::string describe(const LossScaling& settings);

/// What the losses of the next step are multiplied by. It follows from the settings and from which steps had
/// gradients that were NaN or Inf, so ranks that see the same have the same scale. As Megatron-Core's
/// DynamicGradScaler; with a hysteresis of 1 as torch.amp.GradScaler.
class LossScaler {
 public:
  /// The settings are valid.
  explicit LossScaler(const LossScaling& settings);

  double scale() const { return state_.scale; }
  /// After a step whose gradients were measured.
  void update(bool is_finite);

  /// What a checkpoint keeps of it.
  struct State {
    double scale = 1;
    std::int64_t finite_steps = 0;    ///< in a row
    std::int64_t overflows_left = 1;  ///< until the scale becomes smaller
    friend bool operator==(const State&, const State&) = default;
  };
  /// Of a scale that changes from step to step.
  bool is_dynamic() const { return settings_.kind == LossScale::dynamic; }
  const State& state() const { return state_; }
  /// Without a dynamic scale nothing. Errc::mismatch for what is no state of a scaler.
  Result<void> restore(State state);

 private:
  LossScaling settings_;
  State state_;
};

}  // namespace troupe::core
