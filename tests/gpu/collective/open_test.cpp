// Which back-end an option or a name brings, on the host.
#include "gpu/collective/open.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/host/host_device.hpp"
#include "tests/support/rendezvous_memory.hpp"

namespace troupe::gpu {
namespace {

TEST(OpenCollectives, RefusesToRegisterMemoryOfTheHost) {
  const auto device = open_host_device().value();
  MemoryRendezvous rendezvous;
  CollectiveOptions options;
  options.register_memory = true;
  for (const char* const name : {"automatic", "shared_memory", "tcp"}) {
    const auto refused = open_collectives(name, *device, "host", rendezvous, options);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, core::Errc::invalid_argument);
    EXPECT_THAT(refused.error().message, ::testing::HasSubstr("leave --register-memory out"));
  }
  EXPECT_TRUE(open_collectives("automatic", *device, "host", rendezvous).has_value());
}

/// What one rank of four, two on each host, gets.
struct RankOfTwoHosts {
  std::unique_ptr<Device> device = open_host_device().value();
  std::unique_ptr<CollectiveBackend> backend;
  std::unique_ptr<Group> on_host;
  std::unique_ptr<Group> of_all;
  std::string error;
};

GroupOptions group_of(std::string name, std::vector<core::Rank> members, core::Rank self) {
  GroupOptions options;
  options.job = "two-hosts-" + std::to_string(getpid());
  options.epoch = {1};
  options.name = std::move(name);
  options.members = std::move(members);
  options.self = self;
  return options;
}

void make_groups(RankOfTwoHosts& rank, int number, Rendezvous& rendezvous) {
  CollectiveOptions options;
  options.host = 1 + static_cast<std::uint64_t>(number / 2);
  options.address_of_host = [] { return core::Result<std::string>("127.0.0.1"); };
  auto backend = open_collectives("automatic", *rank.device, "host", rendezvous, options);
  if (!backend) return rank.error.assign(backend.error().message), void();
  rank.backend = std::move(*backend);
  const core::Rank first{number / 2 * 2};
  auto on_host = rank.backend->create_group(
      group_of("host" + std::to_string(number / 2), {first, {first.value + 1}}, {number}));
  auto of_all = rank.backend->create_group(group_of("all", {{0}, {1}, {2}, {3}}, {number}));
  if (!on_host || !of_all) return rank.error.assign("no group"), void();
  rank.on_host = std::move(*on_host);
  rank.of_all = std::move(*of_all);
}

TEST(OpenCollectives, ChoosesForEachGroupByItsMembersHosts) {
  MemoryRendezvous rendezvous;
  std::array<RankOfTwoHosts, 4> ranks;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&, i] { make_groups(ranks[static_cast<std::size_t>(i)], i, rendezvous); });
  }
  const auto was_told = [&](const std::string& key) {
    return rendezvous.get("two-hosts-" + std::to_string(getpid()) + "/1/" + key, std::chrono::milliseconds(1))
        .has_value();
  };

  for (const auto& rank : ranks) ASSERT_EQ(rank.error, "");
  EXPECT_TRUE(was_told("host0/shared_memory"));
  EXPECT_TRUE(was_told("host1/shared_memory"));
  EXPECT_FALSE(was_told("all/shared_memory"));
  EXPECT_TRUE(was_told("all/tcp/3"));
  EXPECT_FALSE(was_told("host0/tcp/0"));
}

}  // namespace
}  // namespace troupe::gpu
