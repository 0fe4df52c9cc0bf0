#include <cmath>

#include "core/check.hpp"
#include "gpu/host/kernels/arithmetic.hpp"
#include "gpu/host/kernels/blocks.hpp"
#include "gpu/host/kernels/instructions.hpp"
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
    multiply(raw, step.gradient_factor, gradient.data(), length);
    update(first, length, gradient.data());
    if (has_copy) narrow(&master[first], step.parameter.view.data + first * copy_bytes, length);
  });
}

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

struct SgdBlock {
  [[gnu::always_inline]] static void run(SgdFactors f, std::size_t length, float* __restrict gradient,
                                         float* __restrict value, float* __restrict velocity) {
    if (f.decay != 0) {
      for (std::size_t i = 0; i < length; ++i) gradient[i] += f.decay * value[i];
    }
    if (velocity != nullptr) {
      for (std::size_t i = 0; i < length; ++i) {
        velocity[i] = f.momentum * velocity[i] + gradient[i];
        gradient[i] = f.nesterov ? gradient[i] + f.momentum * velocity[i] : velocity[i];
      }
    }
    for (std::size_t i = 0; i < length; ++i) value[i] += f.minus_rate * gradient[i];
  }
};

/// As SgdFactors.
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

/// torch.lerp: from the nearer end, so that a weight of 1 gives `end` itself.
[[gnu::always_inline]] inline float lerp(float start, float end, float weight) {
  return weight < 0.5F ? start + weight * (end - start) : end - (end - start) * (1 - weight);
}

struct AdamBlock {
  [[gnu::always_inline]] static void run(AdamFactors f, std::size_t length, float* __restrict gradient,
                                         float* __restrict value, float* __restrict first_moment,
                                         float* __restrict second_moment) {
    if (f.decay != 0) {
      for (std::size_t i = 0; i < length; ++i) gradient[i] += f.decay * value[i];
    }
    for (std::size_t i = 0; i < length; ++i) {
      const float g = gradient[i];
      first_moment[i] = lerp(first_moment[i], g, f.first_weight);
      second_moment[i] = second_moment[i] * f.beta2 + f.second_weight * g * g;
      const float denominator = std::sqrt(second_moment[i]) / f.second_correction + f.epsilon;
      value[i] = value[i] * f.kept + f.minus_step_size * first_moment[i] / denominator;
    }
  }
};

}  // namespace

void sgd_step(const SgdOptions& options, const ParameterStep& parameter, BufferView momentum) {
  const bool has_momentum = options.momentum != 0;
  CHECK(momentum.bytes == (has_momentum ? parameter.master.bytes : 0),
        "the momentum buffer is as large as the master values, or empty when there is no momentum");
  const SgdFactors factors(options);
  float* values = parameter.master.as<float>().data();
  float* velocities = momentum.as<float>().data();
  step_blocks(parameter, [=](std::size_t first, std::size_t length, float* gradient) {
    float* velocity = has_momentum ? velocities + first : nullptr;
    run_best<SgdBlock>(factors, length, gradient, values + first, velocity);
  });
}

void adam_step(const AdamOptions& options, std::int64_t step, const ParameterStep& parameter,
               AdamMoments moments) {
  CHECK(step >= 1, "optimizer steps of Adam count from 1");
  CHECK(moments.first.bytes == parameter.master.bytes && moments.second.bytes == parameter.master.bytes,
        "the moments are as large as the master values");
  const AdamFactors factors(options, step);
  float* values = parameter.master.as<float>().data();
  float* first_moments = moments.first.as<float>().data();
  float* second_moments = moments.second.as<float>().data();
  step_blocks(parameter, [=](std::size_t first, std::size_t length, float* gradient) {
    run_best<AdamBlock>(factors, length, gradient, values + first, first_moments + first,
                        second_moments + first);
  });
}

}  // namespace troupe::gpu
