// Values of parameters before the first step, where several ranks keep the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/dtype.hpp"
#include "core/errors.hpp"
#include "tests/simulation/agreeing_job.hpp"

namespace troupe::actors {
namespace {

using core::Errc;
using core::Rank;
using core::Result;

class FirstValuesOfAStrategy : public testing::TestWithParam<core::Strategy> {
 protected:
  FirstValuesOfAStrategy() {
    job.strategy = GetParam();
    if (GetParam() == core::Strategy::hsdp) {
      job.options = [](SessionOptions& options, Rank) {
        options.training.optimizer_instances = agreeing::kRanks;
      };
      for (std::uint32_t p = 0; p < 2; ++p) job.parameters[p].unit = core::UnitIndex{p};
    }
  }
  agreeing::Job job;
};

/// Every rank of hsdp is a replica here.
TEST_P(FirstValuesOfAStrategy, ThatDifferInOneElementAreNamed) {
  job.initial = [](Rank rank, std::uint32_t parameter, std::int64_t element) {
    return rank.value == 1 && parameter == 1 && element == 7 ? 1.5F : 1.0F;
  };

  const auto outcome = agreeing::simulate(
      job, [](SimulatedRank&, Session& session) -> Result<void> { return session.begin_step(0.1); });

  agreeing::expect_on_all(outcome, Errc::mismatch, "rank 1 has other first values of 'b' than rank 0");
}

TEST_P(FirstValuesOfAStrategy, AreTheFirstRanksWhereBroadcast) {
  job.initial = [](Rank rank, std::uint32_t parameter, std::int64_t element) {
    return static_cast<float>(100 * rank.value + 10 * static_cast<int>(parameter)) +
           static_cast<float>(element);
  };
  const auto before = job.options;
  job.options = [before](SessionOptions& options, Rank rank) {
    before(options, rank);
    options.first_values = FirstValues::broadcast;
  };

  const auto outcome = agreeing::simulate(job, [](SimulatedRank&, Session& session) -> Result<void> {
    EXPECT_TRUE(TRY(agreeing::step(session)).committed);
    TRY(session.begin_evaluation());
    for (std::uint32_t p = 0; p < 2; ++p) {
      TRY(session.before_use({p}));
      const auto values = TRY(session.parameter({p}));
      for (std::size_t i = 0; i < values.size(); ++i)
        EXPECT_EQ(values[i], static_cast<float>(10 * p) + static_cast<float>(i) - 0.5F);
    }
    TRY(session.end_evaluation());
    return session.leave();
  });

  EXPECT_EQ(problems_of(outcome.report), "");
}

INSTANTIATE_TEST_SUITE_P(Strategies, FirstValuesOfAStrategy,
                         testing::Values(core::Strategy::ddp, core::Strategy::zero1, core::Strategy::hsdp),
                         [](const auto& tested) { return std::string(core::name_of(tested.param)); });

TEST(FirstValuesOfShards, AreNotComparedWhereEachRankHasItsOwn) {
  agreeing::Job job;
  job.strategy = core::Strategy::zero3;
  for (std::uint32_t p = 0; p < 2; ++p) job.parameters[p].unit = core::UnitIndex{p};
  job.initial = [](Rank rank, auto, auto) { return static_cast<float>(rank.value); };

  const auto outcome = agreeing::simulate(job, [](SimulatedRank&, Session& session) -> Result<void> {
    EXPECT_TRUE(TRY(agreeing::step(session)).committed);
    return session.leave();
  });

  EXPECT_EQ(problems_of(outcome.report), "");
}

/// The trainer writes them again on all ranks, and the session goes on.
TEST(FirstValuesThatDiffer, LeaveTheSessionAsItWas) {
  agreeing::Job job;
  job.initial = [](Rank rank, auto, auto) { return static_cast<float>(rank.value); };

  const auto outcome = agreeing::simulate(job, [](SimulatedRank&, Session& session) -> Result<void> {
    EXPECT_FALSE(session.begin_step(0.1));
    for (std::uint32_t p = 0; p < 2; ++p) {
      TRY(session.write_parameter({p}, [](std::int64_t, std::span<float> values) {
        for (auto& value : values) value = 3;
      }));
    }
    EXPECT_TRUE(TRY(agreeing::step(session)).committed);
    return session.leave();
  });

  EXPECT_EQ(problems_of(outcome.report), "");
}

/// 1 + 2^-20 is 1 in bf16: it becomes visible once a step has moved the master across the middle.
TEST(FirstValuesOfNarrowParameters, AreKeptInF32) {
  agreeing::Job job;
  job.parameters = {{"a", {40}, core::DType::bf16}};
  const float exact = 1.00390625F + 0x1p-20F;  // just above the middle of 1 and its successor in bf16
  job.initial = [=](auto, auto, auto) { return exact; };
  const auto outcome = agreeing::simulate(job, [&](SimulatedRank&, Session& session) -> Result<void> {
    EXPECT_EQ(core::bf16_to_float(TRY(session.parameter<std::uint16_t>({0}))[0]), 1.0078125F);
    TRY(session.begin_step(0x1p-19));
    for (const core::Lane lane : session.lanes()) {
      TRY(session.begin_lane(lane));
      for (auto& element : TRY(session.gradient({0}))) element += 1;
      TRY(session.gradient_ready({0}));
      TRY(session.end_lane(0));
    }
    EXPECT_TRUE(TRY(session.finish_step()).committed);
    TRY(session.publish_all());
    EXPECT_EQ(core::bf16_to_float(TRY(session.parameter<std::uint16_t>({0}))[0]), 1.0F)
        << "a master that began with the rounded value would round to it again";
    return session.leave();
  });

  EXPECT_EQ(problems_of(outcome.report), "");
}

TEST(FirstValuesOfNarrowParameters, AreThoseThatTheTrainerChangedLater) {
  agreeing::Job job;
  job.parameters = {{"a", {40}, core::DType::bf16}};
  job.initial = [=](auto, auto, auto) { return 1.001F; };
  const auto outcome = agreeing::simulate(job, [&](SimulatedRank&, Session& session) -> Result<void> {
    for (auto& bits : TRY(session.parameter<std::uint16_t>({0}))) bits = core::float_to_bf16(5.0F);
    EXPECT_TRUE(TRY(agreeing::step(session, 0)).committed);
    TRY(session.publish_all());
    EXPECT_EQ(core::bf16_to_float(TRY(session.parameter<std::uint16_t>({0}))[0]), 5.0F);
    return session.leave();
  });

  EXPECT_EQ(problems_of(outcome.report), "");
}

}  // namespace
}  // namespace troupe::actors
