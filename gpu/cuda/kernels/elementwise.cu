#include "gpu/cuda/kernels/packs.cuh"

namespace troupe::gpu {
namespace {

constexpr int kThreads = 256;

/// Each result depends only on the same element of the arrays, so an array may be both read and written.
template <class Body>
__global__ void elementwise(Shape shape, Body body) {
  for_each_pack(shape, body);
}

template <class Body>
cudaError_t launch_elementwise(const Shape& shape, const Body& body, const LaunchTarget& target) {
  if (shape.count == 0) return cudaSuccess;
  return launch<Shape, Body>(elementwise<Body>, target, std::max(shape.packs, shape.singles()), 1, kThreads,
                             0, shape, body);
}

struct Fill {
  DeviceArray destination;
  float filling;

  template <int n>
  struct Nothing {};

  template <int n>
  __device__ __forceinline__ Nothing<n> fetch(std::size_t) const {
    return {};
  }
  template <int n>
  __device__ __forceinline__ void finish(std::size_t first, const Nothing<n>&) const {
    Floats<n> values;
    for (int i = 0; i < n; ++i) values.value[i] = filling;
    store(destination, first, values);
  }
};

struct Cast {
  DeviceArray source;
  DeviceArray destination;

  template <int n>
  __device__ __forceinline__ Fetched<n> fetch(std::size_t first) const {
    return fetched<n>(source, first);
  }
  template <int n>
  __device__ __forceinline__ void finish(std::size_t first, const Fetched<n>& pack) const {
    store(destination, first, widened(source.format, pack));
  }
};

/// Row y of the grid casts range y.
__global__ void cast_ranges(CastList casts) {
  const Cast body{{const_cast<void*>(casts.sources[blockIdx.y]), casts.from},
                  {casts.destinations[blockIdx.y], casts.to}};
  const Shape shape = shape_of(casts.sizes[blockIdx.y], {body.source, body.destination});
  for_each_pack(shape, body);
}

struct Round {
  formats::Format narrow;
  DeviceArray values;

  template <int n>
  __device__ __forceinline__ Fetched<n> fetch(std::size_t first) const {
    return fetched<n>(values, first);
  }
  template <int n>
  __device__ __forceinline__ void finish(std::size_t first, const Fetched<n>& pack) const {
    store(values, first, rounded(narrow, widened(values.format, pack)));
  }
};

struct Scale {
  DeviceArray values;
  float factor;

  template <int n>
  __device__ __forceinline__ Fetched<n> fetch(std::size_t first) const {
    return fetched<n>(values, first);
  }
  template <int n>
  __device__ __forceinline__ void finish(std::size_t first, const Fetched<n>& pack) const {
    auto scaled = widened(values.format, pack);
    for (int i = 0; i < n; ++i) scaled.value[i] *= factor;
    store(values, first, scaled);
  }
};

struct Accumulate {
  DeviceArray source;
  DeviceArray destination;

  template <int n>
  struct Terms {
    Fetched<n> sum, more;
  };

  template <int n>
  __device__ __forceinline__ Terms<n> fetch(std::size_t first) const {
    return {fetched<n>(destination, first), fetched<n>(source, first)};
  }
  template <int n>
  __device__ __forceinline__ void finish(std::size_t first, const Terms<n>& terms) const {
    auto sum = widened(destination.format, terms.sum);
    const auto more = widened(source.format, terms.more);
    for (int i = 0; i < n; ++i) sum.value[i] += more.value[i];
    store(destination, first, sum);
  }
};

/// One pack of each array of an optimizer's step.
template <int n>
struct StepPacks {
  Fetched<n> gradient, master, first, second;
};

struct OptimizerStep {
  OptimizerArrays arrays;

  template <int n>
  __device__ __forceinline__ StepPacks<n> fetch(std::size_t first) const {
    return {fetched<n>(arrays.gradient, first), fetched<n>(arrays.master, first),
            fetched<n>(arrays.first, first), fetched<n>(arrays.second, first)};
  }

  template <int n>
  __device__ __forceinline__ Floats<n> clipped_gradient(const StepPacks<n>& packs) const {
    auto gradient = widened(arrays.gradient.format, packs.gradient);
    for (int i = 0; i < n; ++i) gradient.value[i] *= arrays.gradient_factor;
    return gradient;
  }
  template <int n>
  __device__ __forceinline__ Floats<n> master(const StepPacks<n>& packs) const {
    return widened(arrays.master.format, packs.master);
  }
  template <int n>
  __device__ __forceinline__ Floats<n> first_moment(const StepPacks<n>& packs) const {
    return widened(arrays.first.format, packs.first);
  }
  template <int n>
  __device__ __forceinline__ Floats<n> second_moment(const StepPacks<n>& packs) const {
    return widened(arrays.second.format, packs.second);
  }

  template <int n>
  __device__ __forceinline__ void store_values(std::size_t first, const Floats<n>& values) const {
    store(arrays.master, first, values);
    if (arrays.parameter.data != nullptr) store(arrays.parameter, first, values);
  }
};

struct SgdStep : OptimizerStep {
  SgdFactors factors;

  SgdStep(const SgdFactors& own, const OptimizerArrays& of) : OptimizerStep{of}, factors(own) {}

  template <int n>
  __device__ __forceinline__ void finish(std::size_t first, const StepPacks<n>& packs) const {
    auto direction = clipped_gradient(packs);
    auto values = master(packs);
    if (factors.decay != 0) {
      for (int i = 0; i < n; ++i) {
        direction.value[i] = decayed(direction.value[i], factors.decay, values.value[i]);
      }
    }
    if (arrays.first.data != nullptr) {
      auto velocity = first_moment(packs);
      for (int i = 0; i < n; ++i) {
        direction.value[i] = sgd_direction(factors, direction.value[i], velocity.value[i]);
      }
      store(arrays.first, first, velocity);
    }
    for (int i = 0; i < n; ++i) values.value[i] += factors.minus_rate * direction.value[i];
    store_values(first, values);
  }
};

struct AdamStep : OptimizerStep {
  AdamFactors factors;

  AdamStep(const AdamFactors& own, const OptimizerArrays& of) : OptimizerStep{of}, factors(own) {}

  template <int n>
  __device__ __forceinline__ void finish(std::size_t first, const StepPacks<n>& packs) const {
    auto gradient = clipped_gradient(packs);
    auto values = master(packs);
    auto mean = first_moment(packs);
    auto square = second_moment(packs);
    if (factors.decay != 0) {
      for (int i = 0; i < n; ++i) {
        gradient.value[i] = decayed(gradient.value[i], factors.decay, values.value[i]);
      }
    }
    for (int i = 0; i < n; ++i) {
      adam_update(factors, gradient.value[i], values.value[i], mean.value[i], square.value[i]);
    }
    store(arrays.first, first, mean);
    store(arrays.second, first, square);
    store_values(first, values);
  }
};

struct LionStep : OptimizerStep {
  LionFactors factors;

  LionStep(const LionFactors& own, const OptimizerArrays& of) : OptimizerStep{of}, factors(own) {}

  template <int n>
  __device__ __forceinline__ void finish(std::size_t first, const StepPacks<n>& packs) const {
    const auto gradient = clipped_gradient(packs);
    auto values = master(packs);
    auto moment = first_moment(packs);
    for (int i = 0; i < n; ++i) {
      lion_update(factors, gradient.value[i], values.value[i], moment.value[i]);
    }
    store(arrays.first, first, moment);
    store_values(first, values);
  }
};

/// A missing array does not affect where packs begin.
DeviceArray present(const DeviceArray& array, const DeviceArray& otherwise) {
  return array.data != nullptr ? array : otherwise;
}

Shape shape_of_step(const OptimizerArrays& arrays, std::size_t count) {
  return shape_of(count, {arrays.gradient, arrays.master, present(arrays.parameter, arrays.master),
                          present(arrays.first, arrays.master), present(arrays.second, arrays.master)});
}

}  // namespace

cudaError_t launch_fill(DeviceArray destination, float value, std::size_t count, const LaunchTarget& target) {
  return launch_elementwise(shape_of(count, {destination}), Fill{destination, value}, target);
}

cudaError_t launch_cast(DeviceArray source, DeviceArray destination, std::size_t count,
                        const LaunchTarget& target) {
  return launch_elementwise(shape_of(count, {source, destination}), Cast{source, destination}, target);
}

cudaError_t launch_casts(const CastList& casts, const LaunchTarget& target) {
  if (casts.count == 0) return cudaSuccess;
  std::size_t longest = 0;
  for (int i = 0; i < casts.count; ++i) longest = std::max(longest, casts.sizes[i]);
  return launch<CastList>(cast_ranges, target, (longest + kPackElements - 1) / kPackElements,
                          static_cast<unsigned>(casts.count), kThreads, 0, casts);
}

cudaError_t launch_round(formats::Format narrow, DeviceArray values, std::size_t count,
                         const LaunchTarget& target) {
  return launch_elementwise(shape_of(count, {values}), Round{narrow, values}, target);
}

cudaError_t launch_scale(DeviceArray values, float factor, std::size_t count, const LaunchTarget& target) {
  return launch_elementwise(shape_of(count, {values}), Scale{values, factor}, target);
}

cudaError_t launch_accumulate(DeviceArray source, DeviceArray destination, std::size_t count,
                              const LaunchTarget& target) {
  return launch_elementwise(shape_of(count, {source, destination}), Accumulate{source, destination}, target);
}

cudaError_t launch_sgd_step(SgdFactors factors, const OptimizerArrays& arrays, std::size_t count,
                            const LaunchTarget& target) {
  return launch_elementwise(shape_of_step(arrays, count), SgdStep(factors, arrays), target);
}

cudaError_t launch_adam_step(AdamFactors factors, const OptimizerArrays& arrays, std::size_t count,
                             const LaunchTarget& target) {
  return launch_elementwise(shape_of_step(arrays, count), AdamStep(factors, arrays), target);
}

cudaError_t launch_lion_step(LionFactors factors, const OptimizerArrays& arrays, std::size_t count,
                             const LaunchTarget& target) {
  return launch_elementwise(shape_of_step(arrays, count), LionStep(factors, arrays), target);
}

}  // namespace troupe::gpu
