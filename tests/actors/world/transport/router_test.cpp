#include "actors/world/transport/router.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

namespace troupe::actors {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// The routers of a job, whose wires carry everything at once.
class Star {
 public:
  explicit Star(int ranks) {
    for (int rank = 0; rank < ranks; ++rank)
      routers_.push_back(
          std::make_unique<Router>(RouterOptions{.job = "job", .self = {rank}, .world = {ranks}}));
    for (int rank = 1; rank < ranks; ++rank) {
      at_hub_.push_back(hub().open(now));
      at_rank_.push_back(of(rank).open(now));
    }
    carry();
  }

  Router& hub() { return of(0); }
  Router& of(int rank) { return *routers_[static_cast<std::size_t>(rank)]; }
  Router::ConnectionId at_hub(int rank) const { return at_hub_[static_cast<std::size_t>(rank - 1)]; }

  void carry() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t i = 0; i < at_hub_.size(); ++i) {
        Router& rank = of(static_cast<int>(i) + 1);
        const auto up = rank.take_output(at_rank_[i], 1 << 20);
        const auto down = hub().take_output(at_hub_[i], 1 << 20);
        if (!up.empty()) hub().receive(at_hub_[i], up, now);
        if (!down.empty()) rank.receive(at_rank_[i], down, now);
        moved = moved || !up.empty() || !down.empty();
      }
    }
  }

  Router::Time now = std::chrono::seconds(1);

 private:
  std::vector<std::unique_ptr<Router>> routers_;
  std::vector<Router::ConnectionId> at_hub_, at_rank_;
};

// Where a hub of a thousand ranks looked at all connections for each message, the job took as many looks as
// ranks times messages.
TEST(Router, TellsWhichConnectionsHaveSomethingNew) {
  Star star(5);
  const std::vector<std::byte> message(10);
  EXPECT_EQ(star.hub().take_touched().size(), 4U);
  EXPECT_THAT(star.hub().take_touched(), IsEmpty());

  ASSERT_TRUE(star.hub().send({3}, message, star.now));
  ASSERT_TRUE(star.hub().send({1}, message, star.now));
  ASSERT_TRUE(star.hub().send({3}, message, star.now));

  EXPECT_THAT(star.hub().take_touched(), ElementsAre(star.at_hub(1), star.at_hub(3)));
  EXPECT_THAT(star.hub().take_touched(), IsEmpty());
}

TEST(Router, ReportsConnectionsThatRelayBetweenOthers) {
  Star star(4);
  star.hub().take_touched();

  ASSERT_TRUE(star.of(1).send({2}, std::vector<std::byte>(3), star.now));
  star.carry();

  EXPECT_THAT(star.hub().take_touched(), ElementsAre(star.at_hub(1), star.at_hub(2)));
}

TEST(Router, TicksTheConnectionsThatAreDueAndNoOthers) {
  Star star(4);
  star.hub().take_touched();
  const auto due = star.hub().deadline();
  EXPECT_GT(due, star.now);

  star.hub().tick(due - std::chrono::nanoseconds(1));
  EXPECT_THAT(star.hub().take_touched(), IsEmpty());

  star.hub().tick(due);
  EXPECT_THAT(star.hub().take_touched(), ElementsAre(star.at_hub(1), star.at_hub(2), star.at_hub(3)));
  EXPECT_GT(star.hub().deadline(), due);
}

TEST(Router, ForgetsAConnectionThatWasTouched) {
  Star star(3);

  star.hub().disconnected(star.at_hub(1), "gone", star.now);
  star.hub().forget(star.at_hub(1));

  EXPECT_THAT(star.hub().take_touched(), ElementsAre(star.at_hub(2)));
  EXPECT_THAT(star.hub().connections(), ElementsAre(star.at_hub(2)));
  EXPECT_NE(star.hub().deadline(), Router::Time::max());
}

}  // namespace
}  // namespace troupe::actors
