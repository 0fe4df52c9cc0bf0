#include "actors/world/endpoint.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

struct Case {
  std::string text;
  Endpoint endpoint;
};

TEST(Endpoint, IsReadInTheFormsThatPeopleWrite) {
  const std::vector<Case> cases{{"node0", {"node0", std::nullopt}},
                                {"node0:29500", {"node0", 29500}},
                                {"10.0.0.1:0", {"10.0.0.1", 0}},
                                {"::1", {"::1", std::nullopt}},
                                {"[::1]", {"::1", std::nullopt}},
                                {"[::1]:29500", {"::1", 29500}},
                                {"fe80::1%eth0", {"fe80::1%eth0", std::nullopt}},
                                {"[fe80::1%eth0]:1", {"fe80::1%eth0", 1}},
                                {"[0:0:0:0:0:0:0:1]", {"0:0:0:0:0:0:0:1", std::nullopt}}};
  for (const Case& each : cases) {
    const auto endpoint = parse_endpoint(each.text);

    ASSERT_TRUE(endpoint) << each.text << ": " << endpoint.error().message;
    EXPECT_EQ(*endpoint, each.endpoint) << each.text;
    const auto again = parse_endpoint(to_string(*endpoint));
    ASSERT_TRUE(again) << to_string(*endpoint);
    EXPECT_EQ(*again, each.endpoint);
  }
}

TEST(Endpoint, IsRefusedIfItDoesNotReadAsOne) {
  for (const char* text : {"", ":1", "node0:", "node0:x", "node0:65536", "node0:-1", "[::1", "[::1]29500",
                           "[node0]:1", "::1]:5", "1:2:3", "[]:1"}) {
    EXPECT_FALSE(parse_endpoint(text)) << text;
  }
}

TEST(Endpoint, HasNoPortWhereAHostIsWanted) {
  EXPECT_EQ(parse_host("[::1]"), "::1");
  EXPECT_EQ(parse_host("node0"), "node0");
  EXPECT_FALSE(parse_host("node0:1"));
  EXPECT_FALSE(parse_host("[::1]:1"));
}

}  // namespace
}  // namespace troupe::actors
