// What several ranks keep of the model, compared between steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "actors/session/replica_check.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/errors.hpp"
#include "tests/simulation/agreeing_job.hpp"

namespace troupe::actors {
namespace {

using core::Errc;
using core::Rank;
using core::Result;
using testing::HasSubstr;

TEST(ReplicaDifferences, NameTheFewerRanks) {
  const auto found =
      difference_of({{0}, {2}, {4}, {6}}, {"a", "b", "c"}, {{1, 2, 3}, {1, 2, 3}, {1, 9, 9}, {1, 2, 3}});

  EXPECT_EQ(found, (ReplicaDifference{"b", {{4}}, {{0}, {2}, {6}}}));
}

TEST(ReplicaDifferences, NameRanksThatDifferInAnyParameter) {
  const auto found =
      difference_of({{0}, {1}, {2}, {3}, {4}}, {"a", "b"}, {{1, 2}, {7, 2}, {1, 2}, {1, 2}, {1, 8}});

  EXPECT_EQ(found, (ReplicaDifference{"a", {{1}, {4}}, {{0}, {2}, {3}}}));
}

TEST(ReplicaDifferences, AreUndecidedWhereTwoPartiesAreTheLargest) {
  EXPECT_EQ(difference_of({{0}, {1}}, {"a"}, {{1}, {2}}), (ReplicaDifference{"a", {{0}, {1}}, {}}));
  EXPECT_EQ(difference_of({{0}, {1}, {2}, {3}, {4}}, {"a"}, {{1}, {1}, {2}, {2}, {3}}),
            (ReplicaDifference{"a", {{0}, {1}, {2}, {3}, {4}}, {}}));
}

TEST(ReplicaDifferences, ThatAreUndecidedInOneParameterAreUndecided) {
  EXPECT_EQ(difference_of({{0}, {1}, {2}}, {"a", "b"}, {{1, 1}, {1, 2}, {9, 3}}).agreeing,
            std::vector<Rank>{});
}

constexpr int kEvery = 2;

class ReplicasOfAStrategy : public testing::TestWithParam<core::Strategy> {
 protected:
  ReplicasOfAStrategy() {
    job.strategy = GetParam();
    job.options = [](SessionOptions& options, Rank) {
      options.compare_replicas_every = kEvery;
      if (GetParam() == core::Strategy::hsdp) options.training.optimizer_instances = agreeing::kRanks;
    };
    if (GetParam() != core::Strategy::hsdp) return;
    for (std::uint32_t p = 0; p < 2; ++p) job.parameters[p].unit = core::UnitIndex{p};
  }
  agreeing::Job job;
};

class ReplicasThatAreAlike : public ReplicasOfAStrategy {};
/// A trainer cannot write to parameters of units.
class ReplicasThatDiffer : public ReplicasOfAStrategy {};

Result<void> change(Session& session, std::uint32_t parameter, float value) {
  TRY(session.publish_all());
  TRY(session.parameter_memory({parameter})).as<float>()[7] = value;
  return {};
}

Result<void> steps(Session& session, int count) {
  for (int i = 0; i < count; ++i) EXPECT_TRUE(TRY(agreeing::step(session)).committed);
  return {};
}

TEST_P(ReplicasThatDiffer, NameTheRankThatHasChangedThem) {
  const auto outcome = agreeing::simulate(job, [](SimulatedRank& rank, Session& session) -> Result<void> {
    TRY(steps(session, kEvery));
    if (rank.rank().value == 1) TRY(change(session, 1, 5));
    return session.begin_step(0.1);
  });

  EXPECT_EQ(violations_of(outcome.report), "");
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const auto& result = outcome.report.results[rank];
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, rank == 1 ? Errc::corrupt : Errc::peer_lost) << result.error().message;
    EXPECT_THAT(
        result.error().message,
        HasSubstr("after 2 steps rank 1 has other values of 'b' than ranks 0 and 2: a faulty memory"));
  }
}

TEST_P(ReplicasThatDiffer, AreAMismatchWhereNoTwoAgree) {
  const auto outcome = agreeing::simulate(job, [](SimulatedRank& rank, Session& session) -> Result<void> {
    TRY(steps(session, kEvery));
    TRY(change(session, 0, static_cast<float>(rank.rank().value)));
    return session.begin_step(0.1);
  });

  agreeing::expect_on_all(
      outcome, Errc::mismatch,
      "ranks 0, 1 and 2 have other values of 'a' after 2 steps, and no majority says which are right");
}

TEST_P(ReplicasThatDiffer, AreNotSaved) {
  SimulatedStorage disk({});
  const auto outcome = agreeing::simulate(
      job,
      [](SimulatedRank& rank, Session& session) -> Result<void> {
        TRY(steps(session, 1));
        if (rank.rank().value == 2) TRY(change(session, 0, 5));
        EXPECT_FALSE(session.save());
        return core::fail(Errc::internal, "over");
      },
      &disk);

  EXPECT_EQ(disk.list("").value_or(std::vector<std::string>{"?"}), std::vector<std::string>{});
}

TEST_P(ReplicasThatAreAlike, ChangeNothing) {
  const auto outcome = agreeing::simulate(job, [](SimulatedRank&, Session& session) -> Result<void> {
    TRY(steps(session, 3 * kEvery));
    TRY(session.begin_evaluation());
    TRY(session.before_use({1}));
    EXPECT_EQ(TRY(session.parameter({1}))[7], -3);
    TRY(session.end_evaluation());
    return session.leave();
  });

  EXPECT_EQ(problems_of(outcome.report), "");
}

std::string name_of_strategy(const testing::TestParamInfo<core::Strategy>& tested) {
  return std::string(core::name_of(tested.param));
}

INSTANTIATE_TEST_SUITE_P(Strategies, ReplicasThatAreAlike,
                         testing::Values(core::Strategy::ddp, core::Strategy::zero1, core::Strategy::hsdp),
                         name_of_strategy);
INSTANTIATE_TEST_SUITE_P(Strategies, ReplicasThatDiffer,
                         testing::Values(core::Strategy::ddp, core::Strategy::zero1), name_of_strategy);

}  // namespace
}  // namespace troupe::actors
