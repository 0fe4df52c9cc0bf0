#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "core/exact_sum.hpp"
#include "gpu/cuda/cuda_device.hpp"
#include "gpu/kernels.hpp"
#include "tests/cuda_emulation/control.hpp"

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;

/// What kernels do that depends on the device or on where memory is.
class KernelsByDevice : public testing::Test {
 protected:
  void SetUp() override { cuda_emulation::reset(); }
  static std::unique_ptr<Device> open(int index = 0) { return open_cuda_device({.device = index}).value(); }
};

TEST_F(KernelsByDevice, AddSquaresExactlyWhetherDoublesAreFastOrNot) {
  cuda_emulation::set_device_count(2);
  std::vector<float> values(300'000);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random) * (random() % 1000 == 0 ? 1e-15F : 1e-3F);
  core::ExactSquareSum expected;
  expected.accumulate(values);

  for (const int index : {0, 1}) {
    const auto device = open(index);
    const auto stream = device->create_stream({.name = "one"}).value();
    const Buffer staging = device->allocate_staging(values.size() * sizeof(float)).value();
    const Buffer there = device->allocate(staging.bytes()).value();
    const Buffer sum = device->allocate(sizeof expected).value();
    std::memcpy(staging.view().data, values.data(), staging.bytes());
    copy(staging.view(), there.view(), stream.get());
    zero(sum.view(), stream.get());
    add_squares({there.view(), core::DType::f32}, sum.view(), stream.get());
    copy(sum.view(), staging.view().subview(0, sizeof expected), stream.get());
    ASSERT_TRUE(stream->synchronize(60s));

    core::ExactSquareSum found;
    std::memcpy(&found, staging.view().data, sizeof found);
    EXPECT_EQ(found, expected) << index;
  }
}

/// One engine copies to the host, and a save keeps it busy: what a step waits for does not queue up behind
/// that.
TEST_F(KernelsByDevice, WriteSmallResultsToPinnedMemory) {
  const auto device = open();
  const auto stream = device->create_stream({.name = "one"}).value();
  const Buffer there = device->allocate(8192).value();
  const Buffer here = device->allocate_staging(8192).value();
  fill({there.view(), core::DType::f32}, 1.5F, stream.get());
  const auto copied = [&](std::size_t bytes) {
    const auto before = cuda_emulation::calls("cudaMemcpyAsync");
    copy(there.view().subview(4, bytes), here.view().subview(4, bytes), stream.get());
    EXPECT_TRUE(stream->synchronize(60s));
    return cuda_emulation::calls("cudaMemcpyAsync") - before;
  };

  EXPECT_EQ(copied(8), 0U);
  EXPECT_EQ(copied(4096), 0U);
  EXPECT_EQ(copied(4100), 1U);
  std::vector<float> found(1 + 1025);
  std::memcpy(found.data(), here.view().data, found.size() * sizeof(float));
  EXPECT_EQ(found.front(), 0.0F);
  for (std::size_t i = 1; i < found.size(); ++i) ASSERT_EQ(found[i], 1.5F) << i;
}

}  // namespace
}  // namespace troupe::gpu
