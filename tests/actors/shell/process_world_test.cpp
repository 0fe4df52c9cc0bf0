#include "actors/shell/process_rank.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/collective/rendezvous_memory.hpp"

namespace troupe::actors {
namespace {

TEST(ProcessWorld, RanksOfOneHostMeetOverGlooWhereNobodyOutsideReachesThem) {
  ProcessWorldOptions options;
  options.collectives = "gloo";
  options.environment = [] {
    JobEnvironment environment;
    environment.world = core::WorldSize{2};
    environment.local_world = 2;
    // An address of a network for documentation: what leads there is not this host's loopback interface.
    environment.control_host = "192.0.2.1";
    environment.control_port = 9;
    environment.token = std::string(64, '0');
    return core::Result<JobEnvironment>(environment);
  };
  const auto world = ProcessRank::create(options);
  ASSERT_TRUE(world.has_value()) << world.error().message;
  gpu::MemoryRendezvous rendezvous;
  const auto backend = (*world)->collectives(rendezvous);
  ASSERT_TRUE(backend.has_value()) << backend.error().message;

  const auto group = (*backend)->create_group({.job = "job",
                                               .epoch = {1},
                                               .name = "dp",
                                               .members = {{0}, {1}},
                                               .self = {0},
                                               .deadline = std::chrono::milliseconds(1)});

  EXPECT_FALSE(group.has_value()) << "the other did not come";
  const auto doorplate = rendezvous.get("job/1/dp/gloo/0", {});
  ASSERT_TRUE(doorplate.has_value());
  EXPECT_THAT(*doorplate, ::testing::HasSubstr(" 127.0.0.1 "));
}

}  // namespace
}  // namespace troupe::actors
