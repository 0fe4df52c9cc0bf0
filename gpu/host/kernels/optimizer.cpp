#include <cmath>

#include "core/check.hpp"
#include "gpu/host/kernels/blocks.hpp"
#include "gpu/kernels.hpp"

namespace troupe::gpu {
namespace {

void check_arguments(const ParameterStep& parameter) {
  const std::size_t count = parameter.gradient.count();
  CHECK(parameter.master.bytes == count * sizeof(float),
        "an optimizer steps fp32 master values, one a gradient");
  CHECK(parameter.parameter.view.bytes == 0 || parameter.parameter.count() == count,
        "the parameter has one element a gradient");
}

/// Calls update(first, length, gradient) for blocks of clipped gradients in fp32, and copies the new master
/// values out.
template <class Update>
void step_blocks(const ParameterStep& step, Update update) {
  check_arguments(step);
  const Reader gradients(step.gradient);
  const auto master = step.master.as<float>();
  const bool has_copy = step.parameter.view.bytes > 0;
  const auto narrow = converter_of(step.parameter.dtype).narrow;
  const std::size_t copy_bytes = core::size_of(step.parameter.dtype);
  Block gradient;
  for_each_block(master.size(), [&](std::size_t first, std::size_t length) {
    const float* raw = gradients.read(first, length, gradient.data());
    for (std::size_t i = 0; i < length; ++i) gradient[i] = raw[i] * step.gradient_factor;
    update(first, length, gradient.data());
    if (has_copy) narrow(&master[first], step.parameter.view.data + first * copy_bytes, length);
  });
}

/// The factors of one step, the same for all elements.
struct AdamFactors {
  AdamFactors(const AdamOptions& options, std::int64_t step)
      : decay(static_cast<float>(
            options.decoupled_weight_decay ? 1 - options.learning_rate * options.weight_decay : 1)),
        coupled_decay(static_cast<float>(options.decoupled_weight_decay ? 0 : options.weight_decay)),
        first_weight(static_cast<float>(1 - options.beta1)),
        beta2(static_cast<float>(options.beta2)),
        second_weight(static_cast<float>(1 - options.beta2)),
        second_correction(
            static_cast<float>(std::sqrt(1 - std::pow(options.beta2, static_cast<double>(step))))),
        epsilon(static_cast<float>(options.epsilon)),
        minus_step_size(static_cast<float>(
            -(options.learning_rate / (1 - std::pow(options.beta1, static_cast<double>(step)))))) {}

  float decay;
  float coupled_decay;
  float first_weight;
  float beta2;
  float second_weight;
  float second_correction;
  float epsilon;
  float minus_step_size;
};

/// torch.lerp: from the nearer end, so that a weight of 1 gives `end` itself.
float lerp(float start, float end, float weight) {
  return weight < 0.5F ? start + weight * (end - start) : end - (end - start) * (1 - weight);
}

}  // namespace

void sgd_step(const SgdOptions& options, const ParameterStep& parameter, BufferView momentum) {
  const bool has_momentum = options.momentum != 0;
  CHECK(momentum.bytes == (has_momentum ? parameter.master.bytes : 0),
        "the momentum buffer is as large as the master values, or empty when there is no momentum");
  const auto minus_rate = static_cast<float>(-options.learning_rate);
  const auto decay = static_cast<float>(options.weight_decay);
  const auto factor = static_cast<float>(options.momentum);
  const auto values = parameter.master.as<float>();
  const auto velocities = momentum.as<float>();
  step_blocks(parameter, [&](std::size_t first, std::size_t length, float* gradient) {
    float* value = values.data() + first;
    if (decay != 0) {
      for (std::size_t i = 0; i < length; ++i) gradient[i] += decay * value[i];
    }
    if (has_momentum) {
      float* velocity = velocities.data() + first;
      for (std::size_t i = 0; i < length; ++i) {
        velocity[i] = factor * velocity[i] + gradient[i];
        gradient[i] = options.nesterov ? gradient[i] + factor * velocity[i] : velocity[i];
      }
    }
    for (std::size_t i = 0; i < length; ++i) value[i] += minus_rate * gradient[i];
  });
}

void adam_step(const AdamOptions& options, std::int64_t step, const ParameterStep& parameter,
               AdamMoments moments) {
  CHECK(step >= 1, "optimizer steps of Adam count from 1");
  CHECK(moments.first.bytes == parameter.master.bytes && moments.second.bytes == parameter.master.bytes,
        "the moments are as large as the master values");
  const AdamFactors factors(options, step);
  const auto values = parameter.master.as<float>();
  const auto first_moments = moments.first.as<float>();
  const auto second_moments = moments.second.as<float>();
  step_blocks(parameter, [&, f = factors](std::size_t first, std::size_t length, float* gradient) {
    float* __restrict value = values.data() + first;
    float* __restrict first_moment = first_moments.data() + first;
    float* __restrict second_moment = second_moments.data() + first;
    if (f.coupled_decay != 0) {
      for (std::size_t i = 0; i < length; ++i) gradient[i] += f.coupled_decay * value[i];
    }
    for (std::size_t i = 0; i < length; ++i) {
      const float g = gradient[i];
      first_moment[i] = lerp(first_moment[i], g, f.first_weight);
      second_moment[i] = second_moment[i] * f.beta2 + f.second_weight * g * g;
      const float denominator = std::sqrt(second_moment[i]) / f.second_correction + f.epsilon;
      value[i] = value[i] * f.decay + f.minus_step_size * first_moment[i] / denominator;
    }
  });
}

}  // namespace troupe::gpu
