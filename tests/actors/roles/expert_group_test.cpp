#include "actors/roles/expert_group.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/actors/support/machine_probe.hpp"

namespace troupe::actors {
namespace {

using core::Errc;
using core::Lane;
using core::Rank;
using core::Step;
using messages::RowsGo;

// Four experts of layer 7 on ranks 2 and 3; this one is rank 3, which has experts 2 and 3.
ExpertGroupConfig of_two(double bias_rate = 0) {
  return {.rank = Rank{3},
          .layer = 7,
          .spread = {4, 2},
          .members = {Rank{2}, Rank{3}},
          .place = 1,
          .most_rows = 20,
          .most_exchanges = 2,
          .bias_rate = bias_rate};
}

messages::RowsCounted counted(std::uint64_t exchange, std::vector<std::int64_t> counts, Lane lane = Lane{0}) {
  std::int64_t chosen = 0;
  for (const auto count : counts) chosen += count;
  return {Step{0}, lane, exchange, std::move(counts), chosen, 0};
}

messages::StepDecided decided(Step step, bool commit) {
  messages::StepDecided message;
  message.step = step;
  message.commit = commit;
  return message;
}

std::string refusal_in(const std::vector<Effect>& effects) {
  const auto refused = performed<RefuseRows>(effects);
  return refused.empty() ? "" : refused.front().failure.message;
}

// What rank 3 sends and takes in an exchange in which it counts (1, 2, 3, 4), and rank 2 (5, 6, 7, 1).
const std::vector<std::int64_t> kOwn{1, 2, 3, 4}, kOther{5, 6, 7, 1};
const messages::RowsWanted kOut{1, RowsGo::out, {3, 7}, {8, 7}};
const messages::RowsWanted kBack{1, RowsGo::back, {8, 7}, {3, 7}};
const messages::RowsArrived kGone{1, RowsGo::out, 3, 8};
const messages::RowsArrived kReturned{1, RowsGo::back, 8, 3};

TEST(ExpertGroup, MovesRowsAfterAllCountsAndBackAfterOut) {
  ExpertGroupMachine machine(of_two());
  MachineProbe probe(machine);
  probe.say(messages::StepBegan{Step{0}, 0.1, 1});

  EXPECT_NE(refusal_in(probe.say(kOut)).find("its counts come first"), std::string::npos);
  const auto counting = probe.say(counted(1, kOwn));
  EXPECT_EQ(machine.state(), "counting");
  EXPECT_EQ(machine.waiting_for(), "the counts of exchange 1 from ranks 2");
  ASSERT_EQ(performed<GatherCounts>(counting).size(), 1u);
  EXPECT_EQ(performed<GatherCounts>(counting).front().counts, kOwn);
  EXPECT_FALSE(refusal_in(probe.say(kOut)).empty()) << "EG-2";

  const auto planned = performed<HandOutPlan>(probe.say(messages::CountsKnown{1, {kOther, kOwn}}));
  ASSERT_EQ(planned.size(), 1u);
  EXPECT_EQ(planned.front().plan.sent, (std::vector<std::int64_t>{3, 7}));
  EXPECT_EQ(planned.front().plan.received, (std::vector<std::int64_t>{8, 7}));
  EXPECT_FALSE(refusal_in(probe.say(kBack)).empty());
  EXPECT_EQ(performed<MoveRows>(probe.say(kOut)).size(), 1u);
  EXPECT_EQ(machine.state(), "exchanging");
  EXPECT_FALSE(refusal_in(probe.say(kBack)).empty()) << "they are still on their way";
  probe.say(kGone);
  EXPECT_EQ(machine.state(), "computing");
  EXPECT_FALSE(refusal_in(probe.say(kOut)).empty()) << "they are out already";
  EXPECT_EQ(performed<MoveRows>(probe.say(kBack)).size(), 1u);
  EXPECT_EQ(machine.state(), "combining");
  probe.say(kReturned);
  EXPECT_EQ(machine.state(), "idle");
  EXPECT_EQ(machine.unreturned(), "");
}

TEST(ExpertGroup, MovesAsManyRowsAsWereCounted) {
  ExpertGroupMachine machine(of_two());
  MachineProbe probe(machine);
  probe.say(messages::StepBegan{Step{0}, 0.1, 1});
  probe.say(counted(1, kOwn));
  probe.say(messages::CountsKnown{1, {kOther, kOwn}});

  for (const auto& wrong : {messages::RowsWanted{1, RowsGo::out, {4, 7}, {8, 7}},
                            messages::RowsWanted{1, RowsGo::out, {3, 7}, {7, 7}},
                            messages::RowsWanted{1, RowsGo::out, {3}, {8, 7}},
                            {1, RowsGo::out, {}, {}}})
    EXPECT_NE(refusal_in(probe.say(wrong)).find("than were counted"), std::string::npos);
  // What stays on the rank need not move.
  EXPECT_EQ(performed<MoveRows>(probe.say(messages::RowsWanted{1, RowsGo::out, {3, 0}, {8, 0}})).size(), 1u);
}

TEST(ExpertGroup, RefusesCountsThatAreNotOfEachChoiceOnce) {
  ExpertGroupMachine machine(of_two());
  MachineProbe probe(machine);
  probe.say(messages::StepBegan{Step{0}, 0.1, 1});

  const messages::RowsCounted wrong[] = {{Step{0}, Lane{0}, 1, {1, 2, 3}, 6, 0},
                                         {Step{0}, Lane{0}, 1, {1, 2, 3, 4}, 11, 0},
                                         {Step{0}, Lane{0}, 1, {1, 2, 3, 4}, 9, -1},
                                         {Step{0}, Lane{0}, 1, {-1, 2, 3, 4}, 8, 0}};
  for (const auto& counts : wrong)
    EXPECT_NE(refusal_in(probe.say(counts)).find("count each choice once"), std::string::npos);
  const messages::RowsCounted right{Step{0}, Lane{0}, 1, {1, 2, 3, 4}, 11, 1};
  EXPECT_EQ(performed<GatherCounts>(probe.say(right)).size(), 1u);
}

TEST(ExpertGroup, NamesTheExchangeWhoseRowsHaveNotComeBack) {
  ExpertGroupMachine machine(of_two());
  MachineProbe probe(machine);
  probe.say(messages::StepBegan{Step{0}, 0.1, 1});
  probe.say(counted(1, kOwn, Lane{5}));

  for (const auto& message :
       std::vector<messages::Message>{messages::CountsKnown{1, {kOther, kOwn}}, kOut, kGone}) {
    EXPECT_EQ(machine.unreturned(), "rows of exchange 1 of layer 7 in lane 5 have not come back");
    probe.say(message);
  }
  probe.say(kBack);
  probe.say(kReturned);
  EXPECT_EQ(machine.unreturned(), "");
}

TEST(ExpertGroup, ReturnsACreditWithTheGradientsOrTheStep) {
  ExpertGroupMachine machine(of_two());
  MachineProbe probe(machine);
  probe.say(messages::StepBegan{Step{0}, 0.1, 1});
  const auto play = [&](std::uint64_t exchange, Lane lane, int passes) {
    auto effects = probe.say(counted(exchange, kOwn, lane));
    if (!refusal_in(effects).empty()) return refusal_in(effects);
    probe.say(messages::CountsKnown{exchange, {kOther, kOwn}});
    for (int pass = 0; pass < passes; ++pass) {
      auto out = kOut, back = kBack;
      auto gone = kGone, returned = kReturned;
      out.exchange = back.exchange = gone.exchange = returned.exchange = exchange;
      probe.say(out), probe.say(gone), probe.say(back), probe.say(returned);
    }
    return std::string();
  };

  EXPECT_EQ(play(1, Lane{0}, 2), "") << "forward and backward: over";
  EXPECT_EQ(play(2, Lane{0}, 1), "");
  EXPECT_EQ(play(3, Lane{1}, 1), "");
  EXPECT_NE(play(4, Lane{1}, 1).find("has 2 exchanges of rows in this step, and room for 2"),
            std::string::npos);
  probe.say(decided(Step{0}, true));
  probe.say(messages::StepBegan{Step{1}, 0.1, 1});
  EXPECT_EQ(play(7, Lane{0}, 1), "");
}

TEST(ExpertGroup, RefusesTheStepEverywhereWhenOneRankOverflows) {
  auto config = of_two();
  config.most_rows = 14;  // (1, 2 | 3, 4) and (5, 6 | 7, 1): 14 to rank 2, 15 to rank 3
  for (const std::size_t place : {0, 1}) {
    config.place = place;
    config.rank = config.members[place];
    ExpertGroupMachine machine(config);
    MachineProbe probe(machine);
    probe.say(messages::StepBegan{Step{0}, 0.1, 1});
    probe.say(counted(1, place == 1 ? kOwn : kOther));
    const auto planned = performed<HandOutPlan>(probe.say(messages::CountsKnown{1, {kOther, kOwn}}));

    ASSERT_EQ(planned.size(), 1u);
    EXPECT_EQ(planned.front().plan.received_rows(), 0) << "all go on, with no rows";
    EXPECT_EQ(machine.refusal(),
              "15 rows would come to the experts of layer 7 on rank 3, which has room for 14; give it more "
              "rows, or a capacity that drops some");
  }
}

TEST(ExpertGroup, FailsASteplessExchangeWithTooManyRows) {
  auto config = of_two();
  config.most_rows = 14;
  ExpertGroupMachine machine(config);
  MachineProbe probe(machine);
  probe.say(counted(1, kOwn, Lane{-1}));

  const auto refused = performed<RefuseRows>(probe.say(messages::CountsKnown{1, {kOther, kOwn}}));

  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused.front().failure.code, Errc::out_of_memory);
  EXPECT_EQ(machine.refusal(), "");
}

TEST(ExpertGroup, KeepsASteplessExchangeOfEachPiece) {
  for (const std::size_t pieces : {1, 2}) {
    auto config = of_two();
    config.pieces = pieces;
    ExpertGroupMachine machine(config);
    MachineProbe probe(machine);
    const auto moves = [&](std::uint64_t exchange) {
      auto out = kOut;
      out.exchange = exchange;
      return performed<MoveRows>(probe.say(out)).size() == 1;
    };
    for (const std::uint64_t exchange : {4, 5}) {
      probe.say(counted(exchange, kOwn, Lane{-1}));
      probe.say(messages::CountsKnown{exchange, {kOther, kOwn}});
    }

    EXPECT_EQ(moves(4), pieces == 2);
    EXPECT_TRUE(moves(5));
    probe.say(counted(6, kOwn, Lane{-1}));
    EXPECT_FALSE(moves(4));
  }
}

// EG-3, and by the counts of all ranks, which this one has not.
TEST(ExpertGroup, MovesBiasesPerCommittedStepByAllRanksCounts) {
  ExpertGroupMachine machine(of_two(0.25));
  MachineProbe probe(machine);
  const auto play = [&](Step step, bool commit) {
    probe.say(messages::StepBegan{step, 0.1, 1});
    probe.say(messages::LoadCounted{step, {9, 0, 0, 0}, {1, 0, 0, 0}});
    probe.say(messages::LoadSummed{step, {1, 2, 3, 2}, {0, 0, 1, 0}});
    auto kept = performed<KeepExpertState>(probe.say(decided(step, commit)));
    const auto again = performed<KeepExpertState>(probe.say(decided(step, commit)));
    EXPECT_TRUE(again.empty());
    return kept;
  };

  const auto first = play(Step{0}, true);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_TRUE(first.front().moved);
  EXPECT_EQ(first.front().bias, (std::vector<float>{0.25F, 0, -0.25F, 0}));
  const auto refused = play(Step{1}, false);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_FALSE(refused.front().moved);
  EXPECT_EQ(refused.front().bias, first.front().bias);
  EXPECT_EQ(refused.front().chosen, (std::vector<std::int64_t>{2, 4, 6, 4})) << "they count as load";
  EXPECT_EQ(play(Step{2}, true).front().bias, (std::vector<float>{0.5F, 0, -0.5F, 0}));
  EXPECT_TRUE(performed<KeepExpertState>(probe.say(decided(Step{7}, true))).empty());
}

TEST(ExpertGroup, GoesOnFromARestoredState) {
  ExpertGroupMachine machine(of_two(0.25));
  MachineProbe probe(machine);

  const auto kept = performed<KeepExpertState>(
      probe.say(messages::ExpertsRestored{{1, 2, 3, 4}, {10, 20, 30, 40}, {1, 0, 0, 0}}));
  probe.say(messages::StepBegan{Step{9}, 0.1, 1});
  probe.say(messages::LoadSummed{Step{9}, {1, 2, 3, 2}, {0, 0, 1, 0}});
  const auto moved = performed<KeepExpertState>(probe.say(decided(Step{9}, true)));

  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept.front().step, Step{-1});
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_EQ(moved.front().bias, (std::vector<float>{1.25F, 2, 2.75F, 4}));
  EXPECT_EQ(moved.front().chosen, (std::vector<std::int64_t>{11, 22, 33, 42}));
  EXPECT_EQ(moved.front().dropped, (std::vector<std::int64_t>{1, 0, 1, 0}));
}

// EG-4, wherever the failure comes: what moves is not asked for, and what arrives is not handed out.
TEST(ExpertGroup, HandsOutNoRowsAfterAnAbort) {
  const std::vector<messages::Message> course{
      counted(1, kOwn), messages::CountsKnown{1, {kOther, kOwn}}, kOut, kGone, kBack, kReturned};
  for (std::size_t failed_after = 0; failed_after <= course.size(); ++failed_after) {
    ExpertGroupMachine machine(of_two(0.25));
    MachineProbe probe(machine);
    probe.say(messages::StepBegan{Step{0}, 0.1, 1});
    for (std::size_t i = 0; i < failed_after; ++i) probe.say(course[i]);
    probe.say(messages::StepFailed{Step{0}, {true, Errc::peer_lost, "rank 2 is lost"}});

    EXPECT_EQ(machine.state(), "failed");
    for (std::size_t i = failed_after; i < course.size(); ++i) {
      const auto effects = probe.say(course[i]);
      EXPECT_TRUE(performed<MoveRows>(effects).empty() && performed<HandOutPlan>(effects).empty() &&
                  performed<GatherCounts>(effects).empty());
    }
    EXPECT_EQ(refusal_in(probe.say(counted(2, kOwn))), "rank 2 is lost");
    EXPECT_EQ(refusal_in(probe.say(kOut)), "rank 2 is lost");
    EXPECT_TRUE(probe.say(messages::LoadSummed{Step{0}, {1, 2, 3, 2}, {0, 0, 0, 0}}).empty());
    EXPECT_TRUE(probe.say(decided(Step{0}, true)).empty()) << "nor are biases moved";
  }
}

// Messages of any kind in any order: never more exchanges than credits, nothing that EG-1 and EG-2 forbid.
TEST(ExpertGroup, KeepsItsOrderUnderAnyMessages) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    ExpertGroupMachine machine(of_two());
    MachineProbe probe(machine);
    probe.say(messages::StepBegan{Step{0}, 0.1, 1});
    std::map<std::uint64_t, int> at;  // 0 counting, 1 planned, 2 leaving, 3 out, 4 returning, 5 back
    std::map<std::uint64_t, int> returns;
    for (int i = 0; i < 60; ++i) {
      const std::uint64_t exchange = random() % 5 + 1;
      const bool known = at.contains(exchange) && returns[exchange] < 2;
      switch (random() % 4) {
        case 0: {
          const bool asked = !performed<GatherCounts>(probe.say(counted(exchange, kOwn))).empty();
          if (!asked) break;
          EXPECT_FALSE(at.contains(exchange));
          at[exchange] = 0;
          break;
        }
        case 1: {
          const bool handed =
              !performed<HandOutPlan>(probe.say(messages::CountsKnown{exchange, {kOther, kOwn}})).empty();
          EXPECT_EQ(handed, known && at[exchange] == 0);
          if (handed) at[exchange] = 1;
          break;
        }
        case 2: {
          auto wanted = random() % 2 == 0 ? kOut : kBack;
          wanted.exchange = exchange;
          const bool moves = !performed<MoveRows>(probe.say(wanted)).empty();
          const bool may = known && (wanted.go == RowsGo::out ? at[exchange] == 1 || at[exchange] == 5
                                                              : at[exchange] == 3);
          EXPECT_EQ(moves, may);
          if (moves) at[exchange] += wanted.go == RowsGo::out && at[exchange] == 5 ? -3 : 1;
          break;
        }
        default: {
          auto arrived = random() % 2 == 0 ? kGone : kReturned;
          arrived.exchange = exchange;
          const bool fits = known && at[exchange] == (arrived.go == RowsGo::out ? 2 : 4);
          probe.say(arrived);
          if (!fits) break;
          at[exchange] += 1;
          if (arrived.go == RowsGo::back) returns[exchange] += 1;
        }
      }
    }
  }
}

}  // namespace
}  // namespace troupe::actors
