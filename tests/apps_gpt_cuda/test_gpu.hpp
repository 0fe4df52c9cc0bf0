#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <vector>

#include "apps/gpt/kernels/element.cuh"
#include "gpu/cuda/cuda_device.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps::gpt {

/// A GPU with one stream, and tensors on it.
class TestGpu {
 public:
  gpu::Device& device() { return *device_; }
  gpu::StreamView stream() { return stream_.get(); }

  /// Elements of these values, rounded; `values` become what the device then holds.
  template <class E>
  E* put(std::vector<float>& values) {
    std::vector<E> elements;
    for (float& value : values) {
      elements.push_back(narrowed<E>(value));
      value = widened(elements.back());
    }
    return put_all(elements);
  }

  std::int32_t* put(const std::vector<std::int32_t>& values) { return put_all(values); }

  /// The values in f32 or bf16.
  const std::byte* put(std::vector<float>& values, core::DType dtype) {
    return dtype == core::DType::f32 ? reinterpret_cast<const std::byte*>(put<float>(values))
                                     : reinterpret_cast<const std::byte*>(put<Bf16>(values));
  }

  template <class T>
  T* room(std::size_t count) {
    buffers_.push_back(device_->allocate(count * sizeof(T)).value());
    return reinterpret_cast<T*>(buffers_.back().view().data);
  }

  template <class E>
  std::vector<float> get(const E* from, std::size_t count) {
    std::vector<float> values;
    for (const E element : get_all(from, count)) values.push_back(widened(element));
    return values;
  }

  template <class T>
  std::vector<T> get_all(const T* from, std::size_t count) {
    const gpu::Buffer staging = device_->allocate_staging(count * sizeof(T)).value();
    gpu::copy({reinterpret_cast<const std::byte*>(from), count * sizeof(T)}, staging.view(), stream());
    wait();
    const auto* first = reinterpret_cast<const T*>(staging.view().data);
    return {first, first + count};
  }

  /// Enqueues, and waits.
  void run(const std::function<cudaError_t(cudaStream_t)>& launch) {
    ASSERT_TRUE(stream_->run_native(
        "test", [&](void* native) { return static_cast<int>(launch(static_cast<cudaStream_t>(native))); }));
    wait();
  }

  void wait() {
    const auto done = stream_->synchronize(std::chrono::seconds(120));
    ASSERT_TRUE(done) << done.error().message;
  }

 private:
  template <class T>
  T* put_all(const std::vector<T>& values) {
    T* there = room<T>(values.size());
    const std::size_t bytes = values.size() * sizeof(T);
    const gpu::Buffer staging = device_->allocate_staging(bytes).value();
    std::memcpy(staging.view().data, values.data(), bytes);
    gpu::copy(staging.view(), {reinterpret_cast<std::byte*>(there), bytes}, stream());
    wait();
    return there;
  }

  std::unique_ptr<gpu::Device> device_ = gpu::open_cuda_device({}).value();
  gpu::Stream stream_ = device_->create_stream({.name = "compute"}).value();
  std::deque<gpu::Buffer> buffers_;
};

/// The largest difference, as a share of the largest magnitude expected.
template <class T>
double difference(const std::vector<float>& found, const std::vector<T>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double largest = 0;
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto value = static_cast<double>(expected[i]);
    largest = std::max(largest, std::abs(value));
    worst = std::max(worst, std::abs(static_cast<double>(found[i]) - value));
    if (std::isnan(found[i])) worst = INFINITY;
  }
  return largest > 0 ? worst / largest : worst;
}

/// The root mean square of the differences, as a share of that of what is expected.
template <class T>
double mean_difference(const std::vector<float>& found, const std::vector<T>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double differences = 0;
  double squares = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto value = static_cast<double>(expected[i]);
    const double difference = static_cast<double>(found[i]) - value;
    differences += difference * difference;
    squares += value * value;
  }
  if (std::isnan(differences)) return INFINITY;
  return std::sqrt(squares > 0 ? differences / squares : differences);
}

/// How far a result may be from the host's in fp64, as a share of the tensor's largest magnitude: fp32
/// collects rounding of 2^-24 over sums of some hundred terms; bf16 rounds each element to 8 bits, 2^-9, a
/// few times on its way.
template <class E>
inline constexpr double kTolerance = std::is_same_v<E, float> ? 1e-5 : 2e-2;

}  // namespace troupe::apps::gpt
