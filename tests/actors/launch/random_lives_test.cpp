// The NodeAgent's invariants in lives that follow from a seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <optional>
#include <variant>
#include <vector>

#include "actors/launch/node_agent.hpp"
#include "core/random.hpp"

namespace troupe::actors {
namespace {

/// Processes that end when they like, obey or not, and may hang in the kernel; some never start. Everything
/// follows from the seed.
class RandomNode {
 public:
  explicit RandomNode(std::uint64_t seed)
      : random_(seed, "node"),
        ranks_(1 + below(5)),
        in_place_(below(2) == 0),
        machine_({.ranks = ranks_,
                  .max_restarts = below(4),
                  .in_place = in_place_,
                  .fewest_ranks = below(ranks_ + 1),
                  .spares = in_place_ ? below(4) : 0,
                  .no_progress_limit = 1 + below(3)}) {
    perform(machine_.start(now_));
  }

  void run() {
    for (int event = 0; event < 5000 && !finished_; ++event) {
      now_ += std::chrono::milliseconds(below(3000));
      happen();
    }
    EXPECT_TRUE(finished_) << "NA-2: every wait has a deadline";
    EXPECT_TRUE(machine_.exited(0, ExitStatus{1, 0}, now_).empty()) << "NA-3";
    EXPECT_TRUE(machine_.signalled(SIGTERM).empty()) << "NA-3";
    EXPECT_TRUE(machine_.deadline(now_).empty()) << "NA-3";
  }

 private:
  int below(int limit) {
    return static_cast<int>(random_.below(static_cast<std::uint32_t>(limit), draws_++));
  }

  void happen() {
    const int dice = below(40);
    if (dice == 0) {
      constexpr std::array kSignals{SIGTERM, SIGINT, SIGUSR1, SIGHUP};
      perform(machine_.signalled(kSignals[static_cast<std::size_t>(below(4))]));
    } else if (dice == 1) {
      machine_.committed(step_ += below(2));
    } else if (dice < 16 && armed_) {
      armed_ = false;
      perform(machine_.deadline(now_));
    } else if (dice == 17) {
      perform(machine_.formed());
    } else if (dice == 18) {
      const std::vector<int> spares(machine_.spares().begin(), machine_.spares().end());
      perform(machine_.stand_by(spares, now_));
    } else if (dice == 19) {
      perform(machine_.waited_for(std::vector<bool>(machine_.slots().size(), true), now_));
    } else if (!alive_.empty()) {
      end_one();
    }
  }

  void end_one() {
    constexpr std::array kStatuses{ExitStatus{},     ExitStatus{},      ExitStatus{1, 0}, ExitStatus{97, 0},
                                   ExitStatus{0, 9}, ExitStatus{0, 15}, ExitStatus{96, 0}};
    const auto at = alive_.begin() + below(static_cast<int>(alive_.size()));
    const int slot = *at;
    alive_.erase(at);
    const auto status = kStatuses[static_cast<std::size_t>(below(7))];
    const auto rank = machine_.rank_of(slot);
    perform(rank ? machine_.exited(*rank, status, now_, {below(2) == 0, below(4) > 0})
                 : machine_.spare_exited(slot, status, below(4) > 0));
  }

  void perform(const NodeEffects& effects) {
    std::optional<int> absent;
    for (const NodeEffect& effect : effects) {
      EXPECT_FALSE(finished_) << "NA-3: nothing comes after Finish";
      if (std::holds_alternative<StartGang>(effect)) {
        EXPECT_TRUE(alive_.empty()) << "NA-1: no process of the generation before runs";
        const int present = below(20) == 0 ? below(ranks_) : ranks_;
        for (int rank = 0; rank < present; ++rank) alive_.push_back(rank);
        if (present < ranks_) absent = present;
      } else if (const auto* replaced = std::get_if<ReplaceRanks>(&effect)) {
        ASSERT_EQ(replaced->losses.size(), 1u);
        const auto& loss = replaced->losses[0];
        for (std::size_t rank = 0; rank < replaced->slots.size(); ++rank) {
          const int slot = replaced->slots[rank];
          const bool is_started =
              loss.remedy == Remedy::start_again && loss.ending.rank == static_cast<int>(rank);
          EXPECT_EQ(std::ranges::count(alive_, slot), is_started ? 0 : 1) << "NA-1";
          EXPECT_EQ(machine_.rank_of(slot), static_cast<int>(rank));
          if (is_started) alive_.push_back(slot);
        }
        EXPECT_GE(replaced->slots.size(), 1u);
      } else if (const auto* again = std::get_if<FormAgain>(&effect)) {
        for (const int slot : again->slots) EXPECT_EQ(std::ranges::count(alive_, slot), 1);
      } else if (const auto* admitted = std::get_if<AdmitSpares>(&effect)) {
        for (const int slot : admitted->slots) EXPECT_EQ(std::ranges::count(alive_, slot), 1);
      } else if (const auto* spare = std::get_if<StartSpare>(&effect)) {
        EXPECT_EQ(std::ranges::count(alive_, spare->slot), 0) << "a slot has one process";
        alive_.push_back(spare->slot);
      } else if (std::holds_alternative<ArmDeadline>(effect)) {
        armed_ = true;
      } else if (std::holds_alternative<CancelDeadline>(effect)) {
        armed_ = false;
      } else if (const auto* end = std::get_if<EndGeneration>(&effect)) {
        EXPECT_TRUE(in_place_ || end->endings.size() <= static_cast<std::size_t>(ranks_));
        alive_.clear();
      } else if (std::holds_alternative<Finish>(effect)) {
        EXPECT_TRUE(alive_.empty());
        finished_ = true;
      }
    }
    if (absent) {
      std::vector<int> slots;
      for (int slot = *absent; slot < ranks_; ++slot) slots.push_back(slot);
      return perform(machine_.start_failed(slots));
    }
    EXPECT_TRUE(armed_ || finished_ || machine_.state() == "watching") << "NA-2, " << machine_.state();
  }

  core::CounterRandom random_;
  std::uint64_t draws_ = 0;
  int ranks_;
  bool in_place_;
  NodeAgentMachine machine_;
  std::vector<int> alive_;
  std::int64_t step_ = 0;
  bool armed_ = false;
  bool finished_ = false;
  std::chrono::nanoseconds now_{};
};

TEST(NodeAgent, KeepsItsInvariantsInThousandsOfRandomLives) {
  for (std::uint64_t seed = 0; seed < 5000 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomNode(seed).run();
  }
}

}  // namespace
}  // namespace troupe::actors
