#include "gpu/devices.hpp"

#include <gtest/gtest.h>

namespace troupe::gpu {
namespace {

TEST(Devices, AreOpenedByName) {
  const auto host = open_device("host");

  ASSERT_TRUE(host);
  EXPECT_EQ((*host)->kind(), DeviceKind::host);
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:0x", "host:0"}) {
    const auto device = open_device(name);
    ASSERT_FALSE(device) << name;
    EXPECT_EQ(device.error().code, core::Errc::invalid_argument) << name;
    EXPECT_EQ(check_device_name(name).error(), device.error()) << name;
  }
  for (const char* name : {"host", "cuda", "cuda:0", "cuda:7"}) EXPECT_TRUE(check_device_name(name)) << name;
}

TEST(Devices, GpuOpensOrTheErrorSaysWhatIsMissing) {
  const auto devices = list_cuda_devices();

  const auto first = open_device("cuda");
  const auto beyond = open_device("cuda:1000");

  ASSERT_EQ(first.has_value(), devices.has_value());
  ASSERT_FALSE(beyond);
  if (devices) {
    EXPECT_EQ((*first)->kind(), DeviceKind::cuda);
    EXPECT_EQ(beyond.error().code, core::Errc::not_found);
  } else {
    EXPECT_EQ(devices.error().code, core::Errc::unavailable);
    EXPECT_EQ(first.error(), devices.error());
    EXPECT_EQ(beyond.error(), devices.error());
  }
  if (!is_built_with_cuda()) {
    ASSERT_FALSE(first);
    EXPECT_NE(first.error().message.find("-DTROUPE_CUDA=ON"), std::string::npos);
  }
}

}  // namespace
}  // namespace troupe::gpu
