#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/world/network_job.hpp"

namespace troupe::actors {
namespace {

using core::Errc;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

struct Implementation {
  const char* name;
  std::unique_ptr<NetworkJob> (*make)(int world);

  friend std::ostream& operator<<(std::ostream& out, const Implementation& of) { return out << of.name; }
};

class NetworkContract : public ::testing::TestWithParam<Implementation> {
 protected:
  std::unique_ptr<NetworkJob> job_of(int world) const { return GetParam().make(world); }
};

TEST_P(NetworkContract, CarriesMessagesBetweenAnyTwoRanksInOrder) {
  auto job = job_of(4);
  job->open_all();

  for (int message = 0; message < 50; ++message) {
    for (int from = 0; from < 4; ++from) {
      for (int to = 0; to < 4; ++to) ASSERT_TRUE(job->send(from, to, std::to_string(message)));
    }
  }

  std::vector<std::string> expected;
  for (int message = 0; message < 50; ++message) expected.push_back(std::to_string(message));
  for (int from = 0; from < 4; ++from) {
    for (int to = 0; to < 4; ++to) {
      EXPECT_TRUE(job->reaches([&] { return job->messages(to, from).size() == 50; })) << from << " to " << to;
      EXPECT_EQ(job->messages(to, from), expected) << from << " to " << to;
    }
  }
}

TEST_P(NetworkContract, SaysWhoHasJoined) {
  auto job = job_of(3);
  job->open_all();

  EXPECT_TRUE(job->hears(0, "joined 1"));
  EXPECT_TRUE(job->hears(0, "joined 2"));
  EXPECT_TRUE(job->hears(2, "joined 0"));
}

TEST_P(NetworkContract, KeepsMessagesForARankThatJoinsLater) {
  auto job = job_of(3);
  job->open(0);
  job->open(1);

  ASSERT_TRUE(job->send(0, 2, "from the hub"));
  ASSERT_TRUE(job->send(1, 2, "from a peer"));
  ASSERT_TRUE(job->send(1, 0, "after"));
  ASSERT_TRUE(job->hears(0, "1: after"));
  job->open(2);

  EXPECT_TRUE(job->hears(2, "0: from the hub"));
  EXPECT_TRUE(job->hears(2, "1: from a peer"));
}

TEST_P(NetworkContract, CarriesTheLargestMessage) {
  auto job = job_of(3);
  job->open_all();
  std::string largest(kMaxControlMessageBytes, 'x');

  ASSERT_TRUE(job->send(1, 2, largest));

  EXPECT_TRUE(job->hears(2, "1: " + largest));
}

TEST_P(NetworkContract, RefusesWhatCannotBeRight) {
  auto job = job_of(2);
  job->open_all();

  EXPECT_EQ(job->send(0, 2, "x").error().code, Errc::invalid_argument);
  EXPECT_EQ(job->send(0, -1, "x").error().code, Errc::invalid_argument);
  std::string too_large(kMaxControlMessageBytes + 1, 'x');
  EXPECT_EQ(job->send(0, 1, too_large).error().code, Errc::invalid_argument);
  EXPECT_EQ(job->send(0, 0, too_large).error().code, Errc::invalid_argument);
}

TEST_P(NetworkContract, EverybodyHearsOfADeath) {
  auto job = job_of(4);
  job->open_all();
  for (int rank = 1; rank < 4; ++rank) ASSERT_TRUE(job->hears(0, "joined " + std::to_string(rank)));

  job->kill(2);

  for (int rank : {0, 1, 3}) EXPECT_TRUE(job->hears(rank, "lost 2 peer_lost")) << "at rank " << rank;
  EXPECT_EQ(job->send(0, 2, "x").error().code, Errc::peer_lost);
  EXPECT_EQ(job->send(1, 2, "x").error().code, Errc::peer_lost);
  ASSERT_TRUE(job->send(1, 3, "we go on"));
  EXPECT_TRUE(job->hears(3, "1: we go on"));
}

TEST_P(NetworkContract, TheDeathOfTheHubIsHeard) {
  auto job = job_of(3);
  job->open_all();
  ASSERT_TRUE(job->hears(2, "joined 0"));
  ASSERT_TRUE(job->hears(1, "joined 0"));

  job->kill(0);

  EXPECT_TRUE(job->hears(1, "lost 0 peer_lost"));
  EXPECT_TRUE(job->hears(2, "lost 0 peer_lost"));
  EXPECT_EQ(job->send(1, 2, "x").error().code, Errc::peer_lost);
}

TEST_P(NetworkContract, ALostRankMayComeBack) {
  auto job = job_of(3);
  job->open_all();
  ASSERT_TRUE(job->hears(0, "joined 2"));
  ASSERT_TRUE(job->hears(0, "joined 1"));
  job->kill(2);
  ASSERT_TRUE(job->hears(1, "lost 2 peer_lost"));

  job->open(2);
  ASSERT_TRUE(job->hears(1, "joined 2"));

  ASSERT_TRUE(job->send(1, 2, "welcome back"));
  EXPECT_TRUE(job->hears(2, "1: welcome back"));
}

TEST_P(NetworkContract, LeavingIsNoLossAndComesAfterAllMessages) {
  auto job = job_of(3);
  job->open_all();
  ASSERT_TRUE(job->hears(0, "joined 1"));
  ASSERT_TRUE(job->hears(0, "joined 2"));
  ASSERT_TRUE(job->send(1, 2, "last"));

  ASSERT_TRUE(job->networks[1]->close());
  ASSERT_TRUE(job->hears(2, "left 1"));
  ASSERT_TRUE(job->hears(0, "left 1"));
  job->kill(1);
  ASSERT_TRUE(job->send(0, 2, "later"));
  ASSERT_TRUE(job->hears(2, "0: later"));

  EXPECT_THAT(job->heard(2), ElementsAre("joined 0", "1: last", "left 1", "0: later"));
  EXPECT_EQ(job->send(0, 1, "x").error().code, Errc::peer_lost);
}

TEST_P(NetworkContract, TheHubMayLeaveToo) {
  auto job = job_of(3);
  job->open_all();
  ASSERT_TRUE(job->hears(0, "joined 1"));
  ASSERT_TRUE(job->hears(0, "joined 2"));
  ASSERT_TRUE(job->send(0, 1, "last"));

  ASSERT_TRUE(job->networks[0]->close());

  ASSERT_TRUE(job->hears(1, "left 0"));
  ASSERT_TRUE(job->hears(2, "left 0"));
  EXPECT_THAT(job->heard(1), ElementsAre("joined 0", "0: last", "left 0"));
  EXPECT_THAT(job->heard(2), Not(Contains("lost 0 peer_lost")));
  EXPECT_EQ(job->networks[0]->send(core::Rank{1}, bytes_of("x")).error().code, Errc::aborted);
}

INSTANTIATE_TEST_SUITE_P(Implementations, NetworkContract,
                         ::testing::Values(Implementation{"Tcp",
                                                          [](int world) -> std::unique_ptr<NetworkJob> {
                                                            return std::make_unique<TcpJob>(world);
                                                          }},
                                           Implementation{"Simulated",
                                                          [](int world) -> std::unique_ptr<NetworkJob> {
                                                            return std::make_unique<SimulatedJob>(world);
                                                          }}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace troupe::actors
