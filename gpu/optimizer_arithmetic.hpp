#pragma once

#include <cmath>
#include <cstdint>

#include "gpu/host_device.hpp"
#include "gpu/optimizer_options.hpp"

namespace troupe::gpu {

/// The operations of optimizers on one element, each rounded to fp32, in the order of the single-tensor form
/// of torch.optim.

/// Values shared by all elements of one step, rounded to fp32 once.
struct SgdFactors {
  explicit SgdFactors(const SgdOptions& options)
      : minus_rate(static_cast<float>(-options.learning_rate)),
        momentum(static_cast<float>(options.momentum)),
        decay(static_cast<float>(options.weight_decay)),
        nesterov(options.nesterov) {}

  float minus_rate;
  float momentum;
  float decay;
  bool nesterov;
};

/// Like SgdFactors. `step` counts from 1.
struct AdamFactors {
  AdamFactors(const AdamOptions& options, std::int64_t step)
      : first_weight(static_cast<float>(1 - options.beta1)),
        beta2(static_cast<float>(options.beta2)),
        second_weight(static_cast<float>(1 - options.beta2)),
        epsilon(static_cast<float>(options.epsilon)) {
    const auto n = static_cast<double>(step);
    second_correction = static_cast<float>(std::sqrt(1 - std::pow(options.beta2, n)));
    minus_step_size = static_cast<float>(-(options.learning_rate / (1 - std::pow(options.beta1, n))));
    if (options.decoupled_weight_decay) {
      kept = static_cast<float>(1 - options.learning_rate * options.weight_decay);
    } else {
      decay = static_cast<float>(options.weight_decay);
    }
  }

  float first_weight;
  float beta2;
  float second_weight;
  float epsilon;
  float second_correction = 1;
  float minus_step_size = 0;
  float kept = 1;   ///< multiplies the value, for decoupled weight decay
  float decay = 0;  ///< otherwise: adds this times the value to the gradient
};

/// The gradient with weight decay that is not decoupled; for a non-zero decay.
TROUPE_HOST_DEVICE float decayed(float gradient, float decay, float value) {
  return gradient + decay * value;
}

/// Updates the momentum and returns the direction in which the value moves.
TROUPE_HOST_DEVICE float sgd_direction(const SgdFactors& f, float gradient, float& velocity) {
  velocity = f.momentum * velocity + gradient;
  return f.nesterov ? gradient + f.momentum * velocity : velocity;
}

/// torch.lerp: starting from the nearer end, so that a weight of 1 gives exactly `end`.
TROUPE_HOST_DEVICE float lerp(float start, float end, float weight) {
  return weight < 0.5F ? start + weight * (end - start) : end - (end - start) * (1 - weight);
}

TROUPE_HOST_DEVICE void adam_update(const AdamFactors& f, float gradient, float& value, float& first_moment,
                                    float& second_moment) {
  first_moment = lerp(first_moment, gradient, f.first_weight);
  second_moment = second_moment * f.beta2 + f.second_weight * gradient * gradient;
  const float denominator = std::sqrt(second_moment) / f.second_correction + f.epsilon;
  value = value * f.kept + f.minus_step_size * first_moment / denominator;
}

/// Like SgdFactors.
struct LionFactors {
  explicit LionFactors(const LionOptions& options)
      : beta1(static_cast<float>(options.beta1)),
        first_weight(static_cast<float>(1 - options.beta1)),
        beta2(static_cast<float>(options.beta2)),
        second_weight(static_cast<float>(1 - options.beta2)),
        kept(static_cast<float>(1 - options.learning_rate * options.weight_decay)),
        minus_rate(static_cast<float>(-options.learning_rate)) {}

  float beta1;
  float first_weight;
  float beta2;
  float second_weight;
  float kept;  ///< multiplies the value, for weight decay
  float minus_rate;
};

/// NaN stays NaN.
TROUPE_HOST_DEVICE float sign_of(float value) {
  const float sign = value > 0 ? 1.0F : -1.0F;
  return value == 0 ? 0.0F : value == value ? sign : value;
}

TROUPE_HOST_DEVICE void lion_update(const LionFactors& f, float gradient, float& value, float& moment) {
  const float direction = moment * f.beta1 + gradient * f.first_weight;
  value = value * f.kept + f.minus_rate * sign_of(direction);
  moment = moment * f.beta2 + f.second_weight * gradient;
}

/// Like SgdFactors.
struct MuonFactors {
  explicit MuonFactors(const MuonOptions& options)
      : momentum(static_cast<float>(options.momentum)),
        gradient_weight(static_cast<float>(1 - options.momentum)),
        epsilon(static_cast<float>(options.epsilon)),
        linear(static_cast<float>(options.coefficients[0])),
        cubic(static_cast<float>(options.coefficients[1])),
        quintic(static_cast<float>(options.coefficients[2])),
        kept(static_cast<float>(1 - options.learning_rate * options.weight_decay)),
        minus_step(static_cast<float>(-(options.learning_rate * options.scale))),
        nesterov(options.nesterov) {}

  float momentum;
  float gradient_weight;
  float epsilon;
  float linear;
  float cubic;
  float quintic;
  float kept;  ///< multiplies the value, for weight decay
  float minus_step;
  bool nesterov;
};

/// Updates the momentum and returns the direction to be orthogonalised.
TROUPE_HOST_DEVICE float muon_direction(const MuonFactors& f, float gradient, float& velocity) {
  velocity = lerp(velocity, gradient, f.gradient_weight);
  return f.nesterov ? lerp(gradient, velocity, f.momentum) : velocity;
}

/// The divisor of a matrix of this norm, so that its singular values are at most 1.
TROUPE_HOST_DEVICE float muon_divisor(const MuonFactors& f, double squares) {
  const auto norm = static_cast<float>(std::sqrt(squares));
  return norm < f.epsilon ? f.epsilon : norm;
}

}  // namespace troupe::gpu
