#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "gpu/cuda/cuda_device.hpp"
#include "gpu/kernels.hpp"
#include "tests/cuda_emulation/control.hpp"

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;

TEST(CudaDevice, CopiesBothWaysThroughStagingMemory) {
  cuda_emulation::reset();
  const auto device = open_cuda_device({}).value();
  const auto stream = device->create_stream({.name = "copies"}).value();
  const Buffer there = device->allocate(100).value();
  const Buffer here = device->allocate_staging(100).value();
  const Buffer back = device->allocate_staging(100).value();
  std::memset(here.view().data, 7, 100);

  copy(here.view(), there.view(), stream.get());
  copy(there.view(), back.view(), stream.get());
  ASSERT_TRUE(stream->synchronize(60s));

  EXPECT_EQ(std::memcmp(here.view().data, back.view().data, 100), 0);
  EXPECT_TRUE(cuda_emulation::is_device_memory(there.view().data));
  EXPECT_EQ(cuda_emulation::pageable_copies(), 0U);
}

}  // namespace
}  // namespace troupe::gpu
