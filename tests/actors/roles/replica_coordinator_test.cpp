#include "actors/roles/replica_coordinator.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/support/machine_probe.hpp"

namespace troupe::actors {
namespace {

using core::Errc;
using core::Rank;
using messages::CopiesHeld;
using messages::CopyReady;
using messages::ExchangeBegan;
using messages::LocalSaveOver;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const messages::Failure kNoSpace{true, Errc::io, "no space left"};

/// Ranks 0 and 2 keep each other's copies, rank 1 only its own.
class ReplicaCoordinator : public testing::Test {
 protected:
  std::vector<Effect> ready(int rank, std::uint64_t sequence = 1, std::int64_t step = 4) {
    return probe_.say(CopyReady{sequence, Rank{rank}, {step}, 100 + static_cast<std::uint64_t>(rank), {}});
  }
  std::vector<Effect> held(int rank, std::uint64_t sequence = 1) {
    return probe_.say(CopiesHeld{sequence, Rank{rank}, {}});
  }
  void all_ready(std::uint64_t sequence = 1) {
    for (int rank = 0; rank < 3; ++rank) ready(rank, sequence);
  }

  ReplicaCoordinatorMachine machine_{{{3}, {{{0}, {2}}, {{1}}}, std::chrono::seconds(90)}};
  MachineProbe probe_{machine_};
};

/// The receivers of all messages of this type.
template <class Message>
std::vector<int> receivers(const std::vector<Effect>& effects) {
  std::vector<int> ranks;
  for (const auto& effect : effects) {
    const auto* send = std::get_if<Send>(&effect);
    if (send && std::holds_alternative<Message>(send->body)) ranks.push_back(send->to.rank.value);
  }
  return ranks;
}

TEST_F(ReplicaCoordinator, LetsCliquesExchangeOnceEveryRankHasItsCopy) {
  EXPECT_THAT(sent<ExchangeBegan>(ready(0)), IsEmpty());
  EXPECT_THAT(sent<ExchangeBegan>(ready(2)), IsEmpty());
  EXPECT_EQ(machine_.state(), "copying");
  EXPECT_EQ(machine_.waiting_for(), "rank 1 to have its own copy");

  const auto effects = ready(1);

  EXPECT_THAT(receivers<ExchangeBegan>(effects), ElementsAre(0, 2, 1));
  EXPECT_THAT(
      sent<ExchangeBegan>(effects),
      ElementsAre(ExchangeBegan{1, {100, 102}}, ExchangeBegan{1, {100, 102}}, ExchangeBegan{1, {101}}));
  EXPECT_EQ(machine_.state(), "exchanging");
}

TEST_F(ReplicaCoordinator, CallsASaveGoodOnlyWhenAllHoldAll) {
  all_ready();
  EXPECT_THAT(sent<LocalSaveOver>(held(2)), IsEmpty());
  EXPECT_THAT(sent<LocalSaveOver>(held(2)), IsEmpty()) << "said twice";
  EXPECT_THAT(sent<LocalSaveOver>(held(0)), IsEmpty());
  EXPECT_EQ(machine_.waiting_for(), "rank 1 to hold the copies of its clique");

  const auto effects = held(1);

  EXPECT_THAT(receivers<LocalSaveOver>(effects), ElementsAre(0, 1, 2));
  EXPECT_EQ(sent<LocalSaveOver>(effects).at(0), (LocalSaveOver{1, {4}, 303, {}}));
  EXPECT_EQ(machine_.state(), "idle");
}

// Covers local-5.
TEST_F(ReplicaCoordinator, FailsEverywhereWithTheFirstRankWithoutACopy) {
  ready(0);

  const auto effects = probe_.say(CopyReady{1, Rank{2}, {4}, 0, kNoSpace});

  EXPECT_THAT(receivers<LocalSaveOver>(effects), ElementsAre(0, 1, 2)) << "also those not yet heard of";
  EXPECT_EQ(sent<LocalSaveOver>(effects).at(1),
            (LocalSaveOver{1, {4}, 0, {true, Errc::io, "rank 2: no space left"}}));
  EXPECT_THAT(ready(1), IsEmpty()) << "too late";
  EXPECT_EQ(machine_.state(), "idle");
}

TEST_F(ReplicaCoordinator, FailsEverywhereWithTheFirstRankHoldingTooLittle) {
  all_ready();

  const auto effects = probe_.say(CopiesHeld{1, Rank{0}, kNoSpace});

  EXPECT_THAT(receivers<LocalSaveOver>(effects), ElementsAre(0, 1, 2));
  EXPECT_TRUE(sent<LocalSaveOver>(effects).at(0).failure.failed);
  EXPECT_THAT(held(1), IsEmpty());
}

TEST_F(ReplicaCoordinator, NamesWhoIsMissingAtEachPhasesDeadline) {
  ready(0);
  const auto copying = sent<LocalSaveOver>(probe_.timer(0));
  ASSERT_EQ(copying.size(), 3u);
  EXPECT_EQ(copying[0].failure.code, Errc::timeout);
  EXPECT_THAT(copying[0].failure.message, HasSubstr("rank 1, 2 to have its own copy"));

  all_ready(2);
  held(0, 2);
  const auto exchanging = sent<LocalSaveOver>(probe_.timer(0));
  ASSERT_EQ(exchanging.size(), 3u);
  EXPECT_EQ(exchanging[0].sequence, 2u);
  EXPECT_THAT(exchanging[0].failure.message, HasSubstr("rank 1, 2 to hold the copies"));
  EXPECT_THAT(probe_.timer(0), IsEmpty());
}

TEST_F(ReplicaCoordinator, RefusesDifferentSteps) {
  ready(0);

  const auto over = sent<LocalSaveOver>(ready(1, 1, 5));

  ASSERT_EQ(over.size(), 3u);
  EXPECT_EQ(over[0].failure.code, Errc::mismatch);
  EXPECT_THAT(over[0].failure.message, HasSubstr("rank 1 saves after step 5, rank 0 after step 4"));
}

TEST_F(ReplicaCoordinator, IgnoresWhatIsLateEarlyOrOfNoRank) {
  EXPECT_THAT(held(0), IsEmpty());
  EXPECT_THAT(ready(3), IsEmpty());
  EXPECT_THAT(ready(-1), IsEmpty());
  EXPECT_EQ(machine_.state(), "idle");
  all_ready(2);
  EXPECT_THAT(held(0, 1), IsEmpty());
  EXPECT_THAT(held(-1, 2), IsEmpty());
  EXPECT_THAT(ready(0, 1), IsEmpty());
  EXPECT_THAT(ready(0, 2), IsEmpty());
  EXPECT_EQ(machine_.waiting_for(), "rank 0, 1, 2 to hold the copies of its clique");
}

}  // namespace
}  // namespace troupe::actors
