#include "actors/world/epochs.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/scratch_folder.hpp"

namespace troupe::actors {
namespace {

class Epochs : public testing::Test {
 protected:
  EpochFiles files() const {
    const std::map<std::string, std::string> set{{"TROUPE_SLOT", "5"},
                                                 {"TROUPE_EPOCH_FILE", epoch_},
                                                 {"TROUPE_MEMBER_FILE", member_},
                                                 {"TROUPE_FAILURE_FILE", failure_}};
    return *EpochFiles::of([set](const char* name) { return std::optional(set.at(name)); });
  }

  tests::ScratchFolder folder_;
  const std::string epoch_ = folder_.path("epoch");
  const std::string member_ = folder_.path("member");
  const std::string failure_ = folder_.path("failure");
};

TEST_F(Epochs, OfALauncherWithoutProcessesHaveNoFiles) {
  EXPECT_FALSE(EpochFiles::of([](const char*) { return std::nullopt; }));
  EXPECT_FALSE(EpochFiles::of([](const char* name) -> std::optional<std::string> {
    return std::string(name) == "TROUPE_SLOT" ? "first" : "/tmp/file";
  }));
}

TEST_F(Epochs, AreAwaitedUntilTheLauncherSaysTheNext) {
  const NextEpoch third{core::Epoch{3}, "10.77.0.12", 4711, {{0, 0}, {5, 1}, {2, 0}}};
  const NextEpoch fourth{core::Epoch{4}, "::1", 4712, {{0, 0}, {1, 0}, {2, 0}}};
  ASSERT_TRUE(announce_epoch(epoch_, third));
  EXPECT_EQ(announced(epoch_), third);
  EXPECT_TRUE(files().is_over(core::Epoch{2}));
  EXPECT_FALSE(files().is_over(core::Epoch{3}));
  EXPECT_FALSE(files().await_epoch_after(core::Epoch{3}, std::chrono::milliseconds(5)));
  EXPECT_EQ(*files().await_epoch_after(core::Epoch{2}, {}), third);
  EXPECT_EQ(files().rank_in(third), core::Rank{1});
  EXPECT_FALSE(files().rank_in(fourth));

  std::jthread launcher([&] { EXPECT_TRUE(announce_epoch(epoch_, fourth)); });
  const auto next = files().await_epoch_after(core::Epoch{3}, std::chrono::seconds(60));

  ASSERT_TRUE(next.has_value()) << next.error().message;
  EXPECT_EQ(*next, fourth);
}

TEST_F(Epochs, TellSparesHowMuchMemoryRanksHave) {
  ASSERT_TRUE(files().tell_memory(std::size_t{5} << 30));
  std::vector<std::size_t> told;
  const auto next = files().await_rank_after(core::Epoch{3}, [&](std::size_t bytes) {
    told.push_back(bytes);
    if (told.size() == 1) {
      EXPECT_TRUE(files().tell_memory(std::size_t{6} << 30));
    } else {
      EXPECT_TRUE(announce_epoch(epoch_, {core::Epoch{4}, "127.0.0.1", 4711, {{5, 0}}}));
    }
  });
  ASSERT_TRUE(next.has_value()) << next.error().message;
  EXPECT_EQ(told, (std::vector<std::size_t>{std::size_t{5} << 30, std::size_t{6} << 30}));
}

TEST_F(Epochs, AreAwaitedBySparesUntilTheyGetRanks) {
  ASSERT_TRUE(announce_epoch(epoch_, {core::Epoch{3}, "127.0.0.1", 4711, {{5, 0}, {1, 0}}}));
  const NextEpoch wanted{core::Epoch{5}, "127.0.0.1", 4713, {{0, 0}, {1, 0}, {5, 0}}};
  std::jthread launcher([&] {
    EXPECT_TRUE(announce_epoch(epoch_, {core::Epoch{4}, "127.0.0.1", 4712, {{0, 0}, {1, 0}}}));
    EXPECT_TRUE(announce_epoch(epoch_, wanted));
  });

  const auto next = files().await_rank_after(core::Epoch{3});

  ASSERT_TRUE(next.has_value()) << next.error().message;
  EXPECT_EQ(*next, wanted);
}

TEST_F(Epochs, AreNotAwaitedWhereTheLauncherEndsAllProcesses) {
  std::ofstream(failure_) << "rank 2 failed";

  const auto next = files().await_epoch_after(core::Epoch{1}, std::chrono::hours(1));

  ASSERT_FALSE(next.has_value());
  EXPECT_EQ(next.error().message, "the launcher ends all processes of the job");
}

TEST_F(Epochs, ShowWhoTakesPartAndWouldStay) {
  EXPECT_FALSE(declared(member_));
  using State = Membership::State;
  for (const auto state :
       {State::training, State::waiting, State::left, State::forming, State::stands_by, State::given_up}) {
    ASSERT_TRUE(files().declare_membership({core::Epoch{9}, state}));
    EXPECT_EQ(declared(member_), (Membership{core::Epoch{9}, state}));
  }
}

TEST_F(Epochs, DoNotComeFromOtherFiles) {
  for (const std::string text :
       {"", "x", "3", "-1 7 h 0 0", "3 70000 h 0 0\n", "3 0 h 0 0\n", "3 4711\n", "3 4711 h\n",
        "3 4711 h 0\n", "3 4711 h 0 x\n", "3 4711 h -1 0\n", "3 4711 h 0 0 1\n"}) {
    std::ofstream(epoch_, std::ios::trunc) << text;
    EXPECT_FALSE(announced(epoch_)) << text;
  }
}

}  // namespace
}  // namespace troupe::actors
