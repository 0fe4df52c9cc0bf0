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
  __device__ __forceinline__ void run(std::size_t first) const {
    Floats<n> values;
    for (int i = 0; i < n; ++i) values.value[i] = filling;
    store(destination, first, values);
  }
};

struct Cast {
  DeviceArray source;
  DeviceArray destination;

  template <int n>
  __device__ __forceinline__ void run(std::size_t first) const {
    store(destination, first, load<n>(source, first));
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
  __device__ __forceinline__ void run(std::size_t first) const {
    store(values, first, rounded(narrow, load<n>(values, first)));
  }
};

struct Scale {
  DeviceArray values;
  float factor;

  template <int n>
  __device__ __forceinline__ void run(std::size_t first) const {
    auto pack = load<n>(values, first);
    for (int i = 0; i < n; ++i) pack.value[i] *= factor;
    store(values, first, pack);
  }
};

struct Accumulate {
  DeviceArray source;
  DeviceArray destination;

  template <int n>
  __device__ __forceinline__ void run(std::size_t first) const {
    auto sum = load<n>(destination, first);
    const auto more = load<n>(source, first);
    for (int i = 0; i < n; ++i) sum.value[i] += more.value[i];
    store(destination, first, sum);
  }
};

template <int n>
__device__ __forceinline__ Floats<n> clipped_gradient(const OptimizerArrays& arrays, std::size_t first) {
  auto gradient = load<n>(arrays.gradient, first);
  for (int i = 0; i < n; ++i) gradient.value[i] *= arrays.gradient_factor;
  return gradient;
}

template <int n>
__device__ __forceinline__ void store_values(const OptimizerArrays& arrays, std::size_t first,
                                             const Floats<n>& values) {
  store(arrays.master, first, values);
  if (arrays.parameter.data != nullptr) store(arrays.parameter, first, values);
}

struct SgdStep {
  SgdFactors factors;
  OptimizerArrays arrays;

  template <int n>
  __device__ __forceinline__ void run(std::size_t first) const {
    auto direction = clipped_gradient<n>(arrays, first);
    auto values = load<n>(arrays.master, first);
    if (factors.decay != 0) {
      for (int i = 0; i < n; ++i) {
        direction.value[i] = decayed(direction.value[i], factors.decay, values.value[i]);
      }
    }
    if (arrays.first.data != nullptr) {
      auto velocity = load<n>(arrays.first, first);
      for (int i = 0; i < n; ++i) {
        direction.value[i] = sgd_direction(factors, direction.value[i], velocity.value[i]);
      }
      store(arrays.first, first, velocity);
    }
    for (int i = 0; i < n; ++i) values.value[i] += factors.minus_rate * direction.value[i];
    store_values(arrays, first, values);
  }
};

struct AdamStep {
  AdamFactors factors;
  OptimizerArrays arrays;

  template <int n>
  __device__ __forceinline__ void run(std::size_t first) const {
    auto gradient = clipped_gradient<n>(arrays, first);
    auto values = load<n>(arrays.master, first);
    auto first_moment = load<n>(arrays.first, first);
    auto second_moment = load<n>(arrays.second, first);
    if (factors.decay != 0) {
      for (int i = 0; i < n; ++i) {
        gradient.value[i] = decayed(gradient.value[i], factors.decay, values.value[i]);
      }
    }
    for (int i = 0; i < n; ++i) {
      adam_update(factors, gradient.value[i], values.value[i], first_moment.value[i], second_moment.value[i]);
    }
    store(arrays.first, first, first_moment);
    store(arrays.second, first, second_moment);
    store_values(arrays, first, values);
  }
};

struct LionStep {
  LionFactors factors;
  OptimizerArrays arrays;

  template <int n>
  __device__ __forceinline__ void run(std::size_t first) const {
    const auto gradient = clipped_gradient<n>(arrays, first);
    auto values = load<n>(arrays.master, first);
    auto moment = load<n>(arrays.first, first);
    for (int i = 0; i < n; ++i) {
      lion_update(factors, gradient.value[i], values.value[i], moment.value[i]);
    }
    store(arrays.first, first, moment);
    store_values(arrays, first, values);
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
  return launch_elementwise(shape_of_step(arrays, count), SgdStep{factors, arrays}, target);
}

cudaError_t launch_adam_step(AdamFactors factors, const OptimizerArrays& arrays, std::size_t count,
                             const LaunchTarget& target) {
  return launch_elementwise(shape_of_step(arrays, count), AdamStep{factors, arrays}, target);
}

cudaError_t launch_lion_step(LionFactors factors, const OptimizerArrays& arrays, std::size_t count,
                             const LaunchTarget& target) {
  return launch_elementwise(shape_of_step(arrays, count), LionStep{factors, arrays}, target);
}

}  // namespace troupe::gpu
