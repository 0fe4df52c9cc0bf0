#include <cstring>

#include "gpu/host/kernels/arithmetic.hpp"
#include "gpu/host/kernels/blocks.hpp"
#include "gpu/host/kernels/instructions.hpp"
#include "gpu/kernel_checks.hpp"
#include "gpu/kernels.hpp"
#include "gpu/optimizer_arithmetic.hpp"

namespace troupe::gpu {
namespace {

/// Calls update(first, length, gradient) for blocks of gradients in fp32, which are not yet clipped, and
/// copies out the new master values.
template <class Update>
void step_blocks(const ParameterStep& step, Update update) {
  const Reader gradients(step.gradient);
  const auto master = step.master.as<float>();
  const bool has_copy = step.parameter.view.bytes > 0;
  const auto narrow = converter_of(step.parameter.dtype).narrow;
  const std::size_t copy_bytes = core::size_of(step.parameter.dtype);
  const std::size_t gradient_bytes = core::size_of(step.gradient.dtype);
  Block gradient;
  for_each_block(master.size(), [&](std::size_t first, std::size_t length) {
    update(first, length, gradients.read(first, length, gradient.data()));
    if (has_copy) narrow(&master[first], step.parameter.view.data + first * copy_bytes, length);
    // While it is in the cache.
    if (step.cleared.bytes > 0)
      std::memset(step.cleared.data + first * gradient_bytes, 0, length * gradient_bytes);
  });
}

/// Runs step(i) for all i, with what it reads fetched ahead.
template <class Step, class... Arrays>
[[gnu::always_inline]] inline void for_all(std::size_t length, Step step, const Arrays*... arrays) {
  constexpr std::size_t kLine = 16;
  constexpr std::size_t kAhead = kPrefetchBytes / 2;  // there are several streams
  std::size_t i = 0;
  for (; i + kLine <= length; i += kLine) {
    (prefetch(arrays + i, kAhead), ...);
    for (std::size_t k = 0; k < kLine; ++k) step(i + k);
  }
  for (; i < length; ++i) step(i);
}

struct SgdBlock {
  [[gnu::always_inline]] static void run(SgdFactors f, float factor, std::size_t length,
                                         const float* __restrict raw, float* __restrict value,
                                         float* __restrict velocity) {
    Block block;
    float* gradient = block.data();
    for (std::size_t i = 0; i < length; ++i) gradient[i] = raw[i] * factor;
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
  [[gnu::always_inline]] static void run(AdamFactors f, float factor, std::size_t length,
                                         const float* __restrict gradient, float* __restrict value,
                                         float* __restrict first_moment, float* __restrict second_moment) {
    const auto step = [&](std::size_t i) __attribute__((always_inline)) {
      adam_update(f, gradient[i] * factor, value[i], first_moment[i], second_moment[i]);
    };
    const auto step_decayed = [&](std::size_t i) __attribute__((always_inline)) {
      adam_update(f, decayed(gradient[i] * factor, f.decay, value[i]), value[i], first_moment[i],
                  second_moment[i]);
    };
    if (f.decay != 0) return for_all(length, step_decayed, gradient, value, first_moment, second_moment);
    for_all(length, step, gradient, value, first_moment, second_moment);
  }
};

struct LionBlock {
  [[gnu::always_inline]] static void run(LionFactors f, float factor, std::size_t length,
                                         const float* __restrict gradient, float* __restrict value,
                                         float* __restrict moment) {
    for (std::size_t i = 0; i < length; ++i) lion_update(f, gradient[i] * factor, value[i], moment[i]);
  }
};

}  // namespace

void sgd_step(const SgdOptions& options, const ParameterStep& parameter, BufferView momentum) {
  check_sgd_step(options, parameter, momentum);
  const bool has_momentum = options.momentum != 0;
  const SgdFactors factors(options);
  const float factor = parameter.gradient_factor;
  float* values = parameter.master.as<float>().data();
  float* velocities = momentum.as<float>().data();
  step_blocks(parameter, [=](std::size_t first, std::size_t length, const float* gradient) {
    float* velocity = has_momentum ? velocities + first : nullptr;
    run_best<SgdBlock>(factors, factor, length, gradient, values + first, velocity);
  });
}

void adam_step(const AdamOptions& options, std::int64_t step, const ParameterStep& parameter,
               AdamMoments moments) {
  check_adam_step(step, parameter, moments);
  const AdamFactors factors(options, step);
  const float factor = parameter.gradient_factor;
  float* values = parameter.master.as<float>().data();
  float* first_moments = moments.first.as<float>().data();
  float* second_moments = moments.second.as<float>().data();
  step_blocks(parameter, [=](std::size_t first, std::size_t length, const float* gradient) {
    run_best<AdamBlock>(factors, factor, length, gradient, values + first, first_moments + first,
                        second_moments + first);
  });
}

void lion_step(const LionOptions& options, const ParameterStep& parameter, BufferView moment) {
  check_lion_step(parameter, moment);
  const LionFactors factors(options);
  const float factor = parameter.gradient_factor;
  float* values = parameter.master.as<float>().data();
  float* moments = moment.as<float>().data();
  step_blocks(parameter, [=](std::size_t first, std::size_t length, const float* gradient) {
    run_best<LionBlock>(factors, factor, length, gradient, values + first, moments + first);
  });
}

}  // namespace troupe::gpu
