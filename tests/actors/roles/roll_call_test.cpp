#include "actors/roles/roll_call.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace troupe::actors {
namespace {

using core::Rank;
using messages::Call;
using messages::StepAccount;
using messages::TrainerCalls;
using testing::HasSubstr;

std::map<Rank, StepAccount> accounts_of(const std::vector<StepAccount>& given) {
  std::map<Rank, StepAccount> accounts;
  std::int32_t rank = 0;
  for (auto account : given) {
    account.rank = {rank};
    accounts[{rank++}] = account;
  }
  return accounts;
}

TEST(StepReason, NamesTheRanksThatRefuseAndWhy) {
  EXPECT_EQ(reason_of(accounts_of({{.refusal = "no data"}, {}})), "refused by rank 0: no data");
  EXPECT_EQ(reason_of(accounts_of({{.refusal = "no data"}, {}, {.refusal = "no data"}})),
            "refused by ranks 0, 2: no data");
  EXPECT_EQ(reason_of(accounts_of({{.refusal = "no data"}, {.refusal = "a spike"}})),
            "refused by rank 0: no data; rank 1: a spike");
}

TEST(StepReason, NamesWhatDiffersBeforeRefusals) {
  const auto reason =
      reason_of(accounts_of({{.refusal = "no data", .alike = {"the scale: 1", "the rate: 0.1"}},
                             {.alike = {"the scale: 1", "the rate: 0.2"}},
                             {.alike = {"the scale: 1", "the rate: 0.1"}}}));

  EXPECT_EQ(reason, "ranks differ in the rate: 0.1 on ranks 0, 2, 0.2 on rank 1");
}

TEST(StepReason, StaysShortForManyRanks) {
  std::vector<StepAccount> all(1000);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].refusal = std::string(2048, 'x') + std::to_string(i);
  EXPECT_LT(reason_of(accounts_of(all)).size(), 20'000u);
  for (auto& one : all) one.refusal = "the same";
  EXPECT_EQ(reason_of(accounts_of(all)), "refused by ranks 0, 1, 2, 3, 4, 5, 6, 7 and 992 more: the same");
}

TEST(RollCallOfRanks, FindsACallThatNotAllHaveMade) {
  EXPECT_FALSE(difference_in_calls(accounts_of({{.calls = {3, 1}}, {.calls = {3, 1}}})));
  EXPECT_THAT(difference_in_calls(accounts_of({{.calls = {3, 1}}, {.calls = {3, 2}}})).value(),
              HasSubstr("save() alike: once on rank 0, 2 times on rank 1"));
}

/// Three ranks, of which two are blocked by the third, which computes or has moved on.
TEST(RollCallOfRanks, IsNoDeadlockWhileARankMayStillCall) {
  RollCall call({3});
  call.add({{0}, {4}, true, Call::begin_step, 4});
  call.add({{1}, {3, 0, 0, 0, 0, 1}, true, Call::leave, 1});
  EXPECT_FALSE(call.deadlock()) << "nothing is known of rank 2";
  call.add({{2}, {3}, false, Call::begin_step, 3});
  EXPECT_FALSE(call.deadlock()) << "rank 2 does not wait";
  call.add({{2}, {4}, true, Call::begin_step, 4});
  EXPECT_TRUE(call.deadlock()) << "ranks 0 and 2 wait for rank 1, which waits for them";
  call.add({{2}, {4}, false, Call::begin_step, 4});
  EXPECT_FALSE(call.deadlock()) << "it goes on";
}

TEST(RollCallOfRanks, IsNoDeadlockWhereAllHaveMadeTheCall) {
  RollCall call({2});
  call.add({{0}, {4, 0, 0, 0, 0, 1}, true, Call::leave, 1});
  call.add({{1}, {4, 0, 0, 0, 0, 1}, true, Call::leave, 1});

  EXPECT_FALSE(call.deadlock());
  EXPECT_EQ(call.news(), "");
}

}  // namespace
}  // namespace troupe::actors
