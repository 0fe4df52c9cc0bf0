#include "gpu/host/kernels/arithmetic.hpp"
#include "gpu/host/kernels/blocks.hpp"
#include "gpu/host/kernels/instructions.hpp"
#include "gpu/kernel_checks.hpp"
#include "gpu/kernels.hpp"
#include "gpu/optimizer_arithmetic.hpp"

namespace troupe::gpu {
namespace {

/// Calls update(first, length, gradient) for blocks of clipped gradients in fp32, and copies out the new
/// master values.
template <class Update>
void step_blocks(const ParameterStep& step, Update update) {
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

struct SgdBlock {
  [[gnu::always_inline]] static void run(SgdFactors f, std::size_t length, float* __restrict gradient,
                                         float* __restrict value, float* __restrict velocity) {
    if (f.decay != 0) {
      for (std::size_t i = 0; i < length; ++i) gradient[i] = decayed(gradient[i], f.decay, value[i]);
    }
    if (velocity != nullptr) {
      for (std::size_t i = 0; i < length; ++i) gradient[i] = sgd_direction(f, gradient[i], velocity[i]);
    }
    for (std::size_t i = 0; i < length; ++i) value[i] += f.minus_rate * gradient[i];
  }
};

struct AdamBlock {
  [[gnu::always_inline]] static void run(AdamFactors f, std::size_t length, float* __restrict gradient,
                                         float* __restrict value, float* __restrict first_moment,
                                         float* __restrict second_moment) {
    if (f.decay != 0) {
      for (std::size_t i = 0; i < length; ++i) gradient[i] = decayed(gradient[i], f.decay, value[i]);
    }
    for (std::size_t i = 0; i < length; ++i) {
      adam_update(f, gradient[i], value[i], first_moment[i], second_moment[i]);
    }
  }
};

struct LionBlock {
  [[gnu::always_inline]] static void run(LionFactors f, std::size_t length, const float* __restrict gradient,
                                         float* __restrict value, float* __restrict moment) {
    for (std::size_t i = 0; i < length; ++i) lion_update(f, gradient[i], value[i], moment[i]);
  }
};

}  // namespace

void sgd_step(const SgdOptions& options, const ParameterStep& parameter, BufferView momentum) {
  check_sgd_step(options, parameter, momentum);
  const bool has_momentum = options.momentum != 0;
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
  check_adam_step(step, parameter, moments);
  const AdamFactors factors(options, step);
  float* values = parameter.master.as<float>().data();
  float* first_moments = moments.first.as<float>().data();
  float* second_moments = moments.second.as<float>().data();
  step_blocks(parameter, [=](std::size_t first, std::size_t length, float* gradient) {
    run_best<AdamBlock>(factors, length, gradient, values + first, first_moments + first,
                        second_moments + first);
  });
}

void lion_step(const LionOptions& options, const ParameterStep& parameter, BufferView moment) {
  check_lion_step(parameter, moment);
  const LionFactors factors(options);
  float* values = parameter.master.as<float>().data();
  float* moments = moment.as<float>().data();
  step_blocks(parameter, [=](std::size_t first, std::size_t length, const float* gradient) {
    run_best<LionBlock>(factors, length, gradient, values + first, moments + first);
  });
}

}  // namespace troupe::gpu
