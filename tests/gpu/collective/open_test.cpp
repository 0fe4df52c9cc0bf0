// Which back-end an option or a name brings, on the host.
#include "gpu/collective/open.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/collective/rendezvous_memory.hpp"
#include "gpu/host/host_device.hpp"

namespace troupe::gpu {
namespace {

TEST(OpenCollectives, RefusesToRegisterMemoryOfTheHost) {
  const auto device = open_host_device().value();
  MemoryRendezvous rendezvous;
  CollectiveOptions options;
  options.register_memory = true;
  for (const char* const name : {"automatic", "shared_memory", "gloo"}) {
    const auto refused = open_collectives(name, *device, "host", rendezvous, options);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, core::Errc::invalid_argument);
    EXPECT_THAT(refused.error().message, ::testing::HasSubstr("leave --register-memory out"));
  }
  EXPECT_TRUE(open_collectives("automatic", *device, "host", rendezvous).has_value());
}

}  // namespace
}  // namespace troupe::gpu
