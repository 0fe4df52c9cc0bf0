// What ranks must have alike and do not: each case names it, on every rank, within seconds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "actors/world/simulation/storage.hpp"
#include "core/errors.hpp"
#include "tests/simulation/agreeing_job.hpp"

namespace troupe::actors {
namespace {

using core::Errc;
using core::Rank;
using core::Result;
using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

TEST(Settings, DifferingBetweenTrainersAreNamedWithValuesAndRanks) {
  agreeing::Job job;
  job.options = [](SessionOptions& options, Rank rank) {
    options.configuration = {{"seed", "1"}, {"text", rank.value == 2 ? "one\nmore" : "one"}};
  };

  const auto outcome = agreeing::simulate(job, [](auto&, auto&) { return Result<void>{}; });

  agreeing::expect_on_all(
      outcome, Errc::mismatch,
      "rank 2 runs with other settings than rank 0: rank 0 has \"text one\", rank 2 has \"text one more\"");
}

TEST(Settings, UnplannableOnOneRankAreToldToAll) {
  agreeing::Job job;
  job.options = [](SessionOptions& options, Rank rank) {
    if (rank.value == 1) options.training.optimizer_instances = 2;
  };

  const auto outcome = agreeing::simulate(job, [](auto&, auto&) { return Result<void>{}; });

  agreeing::expect_on_all(outcome, Errc::invalid_argument, "optimizer");
}

TEST(LearningRate, NegativeOrNonFiniteIsRefusedAndChangesNothing) {
  const auto outcome = agreeing::simulate({}, [](SimulatedRank&, Session& session) -> Result<void> {
    for (const double rate : {std::nan(""), std::numeric_limits<double>::infinity(), -1.0}) {
      const auto refused = session.begin_step(rate);
      EXPECT_FALSE(refused);
      EXPECT_THAT(refused.error().message, HasSubstr("begin_step() was given a learning rate of"));
    }
    EXPECT_TRUE(TRY(agreeing::step(session, 0)).committed);
    return session.leave();
  });

  EXPECT_EQ(problems_of(outcome.report), "");
}

struct Alone {
  const char* name;
  const char* call;
  agreeing::Course course;  ///< of rank 1, before all go on

  friend std::ostream& operator<<(std::ostream& out, const Alone& of) { return out << of.name; }
};

class OneRankAlone : public testing::TestWithParam<Alone> {};

TEST_P(OneRankAlone, IsNamedOnAllRanksWithinSeconds) {
  SimulatedStorage disk({});
  agreeing::Job job;
  const auto outcome = agreeing::simulate(
      job,
      [](SimulatedRank& rank, Session& session) -> Result<void> {
        TRY(agreeing::step(session));
        if (rank.rank().value == 1) TRY(GetParam().course(rank, session));
        for (int i = 0; i < 5; ++i) TRY(agreeing::step(session));
        TRY(session.save());
        return session.leave();
      },
      &disk);

  agreeing::expect_on_all(outcome, Errc::mismatch, GetParam().call);
}

TEST_P(OneRankAlone, IsNamedWhereItComesBeforeTheFirstStep) {
  SimulatedStorage disk({});
  const auto outcome = agreeing::simulate(
      {},
      [](SimulatedRank& rank, Session& session) -> Result<void> {
        if (rank.rank().value == 1) TRY(GetParam().course(rank, session));
        for (int i = 0; i < 5; ++i) TRY(agreeing::step(session));
        return session.leave();
      },
      &disk);

  agreeing::expect_on_all(outcome, Errc::mismatch, GetParam().call);
}

INSTANTIATE_TEST_SUITE_P(Calls, OneRankAlone,
                         testing::Values(Alone{"save", "save()",
                                               [](auto&, Session& session) -> Result<void> {
                                                 TRY(session.save());
                                                 return {};
                                               }},
                                         Alone{"save_and_wait", "save()",
                                               [](auto&, Session& session) -> Result<void> {
                                                 TRY(session.save());
                                                 return session.wait_saves();
                                               }},
                                         Alone{"leave", "leave()",
                                               [](auto&, Session& session) { return session.leave(); }}),
                         testing::PrintToStringParamName());

TEST(OneRankAloneThatRestores, IsNamedOnAllRanksWithinSeconds) {
  SimulatedStorage disk({});
  const auto outcome = agreeing::simulate(
      {},
      [](SimulatedRank& rank, Session& session) -> Result<void> {
        if (rank.rank().value == 1) TRY(session.restore());
        TRY(agreeing::step(session));
        return session.leave();
      },
      &disk);

  agreeing::expect_on_all(outcome, Errc::mismatch, "restore()");
}

TEST(OneRankAloneThatEvaluates, IsNamedEverywhereWithinSecondsWhereParametersAreSharded) {
  agreeing::Job job;
  job.strategy = core::Strategy::zero3;
  for (std::uint32_t p = 0; p < 2; ++p) job.parameters[p].unit = core::UnitIndex{p};
  const auto outcome = agreeing::simulate(job, [](SimulatedRank& rank, Session& session) -> Result<void> {
    TRY(agreeing::step(session));
    if (rank.rank().value == 1) {
      TRY(session.begin_evaluation());
      TRY(session.before_use({0}));
      TRY(session.end_evaluation());
    }
    TRY(agreeing::step(session));
    return session.leave();
  });

  agreeing::expect_on_all(outcome, Errc::mismatch, "rank 1 posted kind all_gather");
}

/// Nobody has failed: ranks say whom they wait for, and go on when it comes.
TEST(ARankThatIsLate, IsNamedInTheLogsOfAllRanks) {
  std::vector<std::string> logs(agreeing::kRanks);
  SimulationOptions simulation;
  simulation.ranks = {agreeing::kRanks};
  const auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> Result<bool> {
    auto session = TRY(agreeing::join_job(rank, {}));
    TRY(agreeing::step(*session));
    if (rank.rank().value == 1) rank.compute(30s);
    TRY(session->leave());
    for (const auto& line : rank.logged()) logs[static_cast<std::size_t>(rank.rank().value)] += line;
    return true;
  });

  EXPECT_EQ(problems_of(outcome.report), "");
  for (const auto& log : logs) EXPECT_THAT(log, HasSubstr("waits in leave() for rank 1 to call it"));
}

/// The session of a restore that nothing came of is as it was.
TEST(ARestoreThatDoesNotFit, SaysWhyAndLeavesTheSessionUnchanged) {
  SimulatedStorage disk({});
  std::vector<core::ParameterSpec> saved, wanted;
  for (int i = 0; i < 200; ++i) {
    saved.push_back({fmt::format("model.layer{}.w", i), {4}});
    wanted.push_back({fmt::format("layer{}.w", i), {4}});
  }
  agreeing::Job saving;
  saving.parameters = saved;
  const auto first = agreeing::simulate(
      saving,
      [](SimulatedRank&, Session& session) -> Result<void> {
        TRY(agreeing::step(session));
        TRY(session.save());
        return session.leave();
      },
      &disk);
  ASSERT_EQ(problems_of(first.report), "");
  agreeing::Job reading;
  reading.parameters = wanted;

  const auto second = agreeing::simulate(
      reading,
      [](SimulatedRank&, Session& session) -> Result<void> {
        const auto restored = session.restore();
        EXPECT_FALSE(restored);
        EXPECT_THAT(restored.error().message,
                    AllOf(HasSubstr("no checkpoint could be loaded; step_00000001"),
                          HasSubstr("All names differ by the prefix 'model.'"), HasSubstr("more")));
        EXPECT_LT(restored.error().message.size(), 700u) << restored.error().message;
        EXPECT_TRUE(TRY(agreeing::step(session)).committed);
        return session.leave();
      },
      &disk);

  EXPECT_EQ(problems_of(second.report), "");
}

TEST(ARestoreOfOtherShapes, LeavesTheSessionAsItWas) {
  SimulatedStorage disk({});
  const auto first = agreeing::simulate(
      {},
      [](SimulatedRank&, Session& session) -> Result<void> {
        TRY(agreeing::step(session));
        TRY(session.save());
        return session.leave();
      },
      &disk);
  ASSERT_EQ(problems_of(first.report), "");
  agreeing::Job other;
  other.parameters = {{"a", {44}}, {"b", {20}}};

  const auto second = agreeing::simulate(
      other,
      [](SimulatedRank&, Session& session) -> Result<void> {
        EXPECT_FALSE(session.restore());
        EXPECT_TRUE(TRY(agreeing::step(session)).committed);
        return session.leave();
      },
      &disk);

  EXPECT_EQ(problems_of(second.report), "");
}

}  // namespace
}  // namespace troupe::actors
