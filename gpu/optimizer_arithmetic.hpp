#pragma once

#include <cmath>
#include <cstdint>

#include "gpu/host_device.hpp"
#include "gpu/optimizer_options.hpp"

namespace troupe::gpu {

/// What optimizers do with one element, each operation rounded to fp32, in the order of the single tensor
/// form of torch.optim.

/// What is the same for all elements of one step, rounded to fp32 once.
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

/// As SgdFactors. `step` counts from 1.
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
  float kept = 1;   ///< of the value, by decoupled weight decay
  float decay = 0;  ///< added to the gradient, otherwise
};

/// The gradient with weight decay that is not decoupled; for a decay that is not 0.
TROUPE_HOST_DEVICE float decayed(float gradient, float decay, float value) {
  return gradient + decay * value;
}

/// Updates the momentum and returns what the value moves along.
TROUPE_HOST_DEVICE float sgd_direction(const SgdFactors& f, float gradient, float& velocity) {
  velocity = f.momentum * velocity + gradient;
  return f.nesterov ? gradient + f.momentum * velocity : velocity;
}

/// torch.lerp: from the nearer end, so that a weight of 1 gives `end` itself.
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

}  // namespace troupe::gpu
