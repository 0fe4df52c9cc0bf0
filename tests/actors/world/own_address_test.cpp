#include "actors/world/own_address.hpp"

#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

TEST(OwnAddress, IsTheLoopbackAddressTowardsThisHost) {
  const auto address = own_address_towards("127.0.0.1", 4321);

  ASSERT_TRUE(address) << address.error().message;
  EXPECT_EQ(*address, "127.0.0.1");
  EXPECT_TRUE(is_loopback(*address));
}

TEST(OwnAddress, NamesAHostThatIsNotKnown) {
  const auto address = own_address_towards("no such host", 4321);

  ASSERT_FALSE(address);
  EXPECT_EQ(address.error().code, core::Errc::unavailable);
  EXPECT_NE(address.error().message.find("no such host"), std::string::npos);
}

TEST(OwnAddress, TellsLoopbackAddressesFromOthers) {
  for (const char* host : {"localhost", "127.0.0.1", "127.0.1.1", "::1"}) EXPECT_TRUE(is_loopback(host));
  for (const char* host : {"10.0.0.1", "node-1", "fe80::1", "1.127.0.0"}) EXPECT_FALSE(is_loopback(host));
}

}  // namespace
}  // namespace troupe::actors
