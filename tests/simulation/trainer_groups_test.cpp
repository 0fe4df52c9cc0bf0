#include "actors/session/trainer_group.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "core/errors.hpp"
#include "core/indices.hpp"
#include "core/random.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

using core::DType;
using core::Rank;

/// Four ranks as a square: rows are {0, 1} and {2, 3}, columns {0, 2} and {1, 3}.
const std::vector<TrainerGroupSpec> kSquare{{"row", {{{0}, {1}}, {{2}, {3}}}},
                                            {"column", {{{0}, {2}}, {{1}, {3}}}}};

std::vector<core::ParameterSpec> three_units() {
  std::vector<core::ParameterSpec> parameters;
  for (std::uint32_t unit = 0; unit < 3; ++unit) {
    core::ParameterSpec spec{"w" + std::to_string(unit), {16}};
    spec.unit = core::UnitIndex{unit};
    parameters.push_back(std::move(spec));
  }
  return parameters;
}

SessionOptions square_options(core::Strategy strategy) {
  SessionOptions options;
  options.training.strategy = strategy;
  options.training.lanes = 8;
  options.training.bucket_elements = 16;
  options.groups = kSquare;
  return options;
}

gpu::BufferView bytes_of(std::vector<float>& values) {
  return gpu::view_of(std::span(values));
}

/// One value of the rank through an all_reduce of its row and one of its column: all ranks' sum.
core::Result<float> sum_over_square(TrainerGroup& row, TrainerGroup& column, float value) {
  std::vector<float> values(4, value);
  TRY(row.wait(TRY(row.all_reduce(bytes_of(values), DType::f32))));
  TRY(column.wait(TRY(column.all_reduce(bytes_of(values), DType::f32))));
  return values[0];
}

using Compute = std::function<void()>;

/// Steps whose passes sum over the square for every unit, forward and backward. The largest deviation from
/// what the sums must be.
core::Result<float> train_on_square(SimulatedRank& rank, core::Strategy strategy, int steps,
                                    const Compute& compute) {
  auto session = TRY(Session::join(rank, square_options(strategy), three_units()));
  auto& row = *TRY(session->group("row"));
  auto& column = *TRY(session->group("column"));
  float worst = 0;
  const auto pass = [&](float value, float expected) -> core::Result<void> {
    compute();
    const float sum = TRY(sum_over_square(row, column, value));
    worst = std::max(worst, std::abs(sum - expected));
    return {};
  };
  for (int step = 0; step < steps; ++step) {
    TRY(session->begin_step(0.1));
    float own = static_cast<float>(rank.rank().value + step);
    const float all = static_cast<float>(6 + 4 * step);
    for (core::Lane lane : session->lanes()) {
      TRY(session->begin_lane(lane));
      for (std::uint32_t unit = 0; unit < 3; ++unit) {
        TRY(session->before_use({unit}));
        TRY(pass(own, all));
      }
      TRY(session->begin_backward());
      for (std::uint32_t unit = 3; unit-- > 0;) {
        TRY(session->before_use({unit}));
        TRY(pass(2 * own, 2 * all));
        for (auto& element : TRY(session->gradient({unit}))) element += 1;
        TRY(session->gradient_ready({unit}));
        TRY(pass(own, all));
      }
      TRY(session->end_lane(0));
    }
    TRY(session->finish_step());
    TRY(pass(own, all));
  }
  TRY(session->leave());
  return worst;
}

class TrainerGroups : public testing::TestWithParam<core::Strategy> {};

/// On a full device ranks that launch in different orders wait for each other for ever, which the simulator
/// would say.
TEST_P(TrainerGroups, RunBesideTheSessionsCollectivesOnFullDevices) {
  for (const bool full : {false, true}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      SimulationOptions simulation;
      simulation.ranks = {4};
      simulation.seed = seed;
      simulation.fabric.in_launch_order = full;

      const auto outcome = simulate_job<float>(simulation, [&](SimulatedRank& rank) {
        core::CounterRandom random(seed, std::to_string(rank.rank().value));
        std::uint64_t drawn = 0;
        return train_on_square(rank, GetParam(), 3, [&] {
          rank.compute(std::chrono::nanoseconds(static_cast<std::int64_t>(random.uniform(drawn++) * 2e5)));
        });
      });

      ASSERT_EQ(problems_of(outcome.report), "") << "seed " << seed << (full ? ", full devices" : "");
      for (const float worst : outcome.ranks) ASSERT_EQ(worst, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, TrainerGroups,
                         testing::Values(core::Strategy::ddp, core::Strategy::zero1, core::Strategy::zero2,
                                         core::Strategy::zero3),
                         testing::PrintToStringParamName());

template <class Train>
auto run_square(const Train& train) {
  SimulationOptions simulation;
  simulation.ranks = {4};
  return simulate_job<std::vector<float>>(
      simulation, [&](SimulatedRank& rank) -> core::Result<std::vector<float>> {
        auto session = TRY(Session::join(rank, square_options(core::Strategy::zero1), three_units()));
        auto values = TRY(train(*session, rank.rank()));
        TRY(session->leave());
        return values;
      });
}

TEST(TrainerGroup, MovesPartsOfAnySizeToItsMembers) {
  const auto outcome = run_square([](Session& session, Rank rank) -> core::Result<std::vector<float>> {
    auto& row = *TRY(session.group("row"));
    // The first member gives none to itself and three to the other; the second two to the first, one to
    // itself.
    const bool first = row.index() == 0;
    std::vector<float> given(3, static_cast<float>(rank.value));
    std::vector<float> taken(first ? 2 : 4, -1);
    const auto posted = TRY(row.all_to_all(
        bytes_of(given), first ? TrainerGroup::Counts{0, 3} : TrainerGroup::Counts{2, 1}, bytes_of(taken),
        first ? TrainerGroup::Counts{0, 2} : TrainerGroup::Counts{3, 1}, DType::f32));
    TRY(row.wait(posted));
    return taken;
  });

  ASSERT_EQ(problems_of(outcome.report), "");
  EXPECT_EQ(outcome.ranks[2], (std::vector<float>{3, 3}));
  EXPECT_EQ(outcome.ranks[3], (std::vector<float>{2, 2, 2, 3}));
}

TEST(TrainerGroup, WithoutMembersHasAllRanks) {
  for (const int ranks : {1, 2, 3}) {
    SimulationOptions simulation;
    simulation.ranks = {ranks};
    const auto outcome = simulate_job<float>(simulation, [](SimulatedRank& rank) -> core::Result<float> {
      auto options = square_options(core::Strategy::zero1);
      options.groups = {{"all", {}}};
      auto session = TRY(Session::join(rank, options, three_units()));
      auto& all = *TRY(session->group("all"));
      std::vector<float> values(1, static_cast<float>(rank.rank().value + 1));
      TRY(all.wait(TRY(all.all_reduce(bytes_of(values), DType::f32))));
      TRY(session->leave());
      return values[0];
    });

    ASSERT_EQ(problems_of(outcome.report), "") << ranks;
    for (const float sum : outcome.ranks) EXPECT_EQ(sum, static_cast<float>(ranks * (ranks + 1) / 2));
  }
}

TEST(TrainerGroup, CountsWhatItsRankMustGiveToOthers) {
  SimulationOptions simulation;
  simulation.ranks = {3};
  using Bytes = std::vector<std::int64_t>;
  const auto outcome = simulate_job<Bytes>(simulation, [](SimulatedRank& rank) -> core::Result<Bytes> {
    auto options = square_options(core::Strategy::zero1);
    options.groups = {{"three", {{{0}, {1}, {2}}}}};
    auto session = TRY(Session::join(rank, options, three_units()));
    auto& three = *TRY(session->group("three"));
    const int index = three.index();
    Bytes sent;
    std::int64_t before = 0;
    const auto note = [&](TrainerGroup::Posted posted) -> core::Result<void> {
      TRY(three.wait(posted));
      sent.push_back(three.sent().bytes - std::exchange(before, three.sent().bytes));
      return {};
    };
    const TrainerGroup::Counts counts{1, 2, 3};
    const auto own_count = static_cast<std::size_t>(index) + 1;
    std::vector<float> six(6), own(own_count), taken(3 * own_count);
    TRY(note(TRY(three.all_reduce(bytes_of(six), DType::f32))));
    TRY(note(TRY(three.reduce_scatter(bytes_of(six), bytes_of(own), DType::f32, counts))));
    TRY(note(TRY(three.all_gather(bytes_of(own), bytes_of(six), DType::f32, counts))));
    TRY(note(TRY(three.all_to_all(bytes_of(six), counts, bytes_of(taken), TrainerGroup::Counts(3, own_count),
                                  DType::f32))));
    TRY(note(TRY(three.broadcast(bytes_of(six), DType::f32, 1))));
    if (index == 0) TRY(note(TRY(three.send(bytes_of(six), DType::f32, 1))));
    if (index == 1) TRY(note(TRY(three.receive(bytes_of(six), DType::f32, 0))));
    sent.push_back(three.sent().launches);
    TRY(session->leave());
    return sent;
  });

  ASSERT_EQ(problems_of(outcome.report), "");
  // Members have 4, 8 and 12 of 24 bytes, and 8 each of a sum: what is not their own they give once, what is
  // to both others.
  EXPECT_EQ(outcome.ranks[0], (Bytes{16 + 16, 20, 8, 20, 0, 24, 6}));
  EXPECT_EQ(outcome.ranks[1], (Bytes{16 + 16, 16, 16, 16, 48, 0, 6}));
  EXPECT_EQ(outcome.ranks[2], (Bytes{16 + 16, 12, 24, 12, 0, 5}));
}

TEST(TrainerGroup, GathersScattersAndBroadcasts) {
  const auto outcome = run_square([](Session& session, Rank rank) -> core::Result<std::vector<float>> {
    auto& column = *TRY(session.group("column"));
    std::vector<float> own(static_cast<std::size_t>(column.index()) + 1, static_cast<float>(rank.value));
    std::vector<float> all(3);
    TRY(column.wait(TRY(column.all_gather(bytes_of(own), bytes_of(all), DType::f32, {1, 2}))));
    std::vector<float> part(own.size());
    TRY(column.wait(TRY(column.reduce_scatter(bytes_of(all), bytes_of(part), DType::f32, {1, 2},
                                              TrainerGroup::Reduction::max))));
    std::vector<float> told{static_cast<float>(rank.value)};
    TRY(column.wait(TRY(column.broadcast(bytes_of(told), DType::f32, 1))));
    all.insert(all.end(), part.begin(), part.end());
    all.push_back(told[0]);
    return all;
  });

  ASSERT_EQ(problems_of(outcome.report), "");
  EXPECT_EQ(outcome.ranks[1], (std::vector<float>{1, 3, 3, 1, 3}));
  EXPECT_EQ(outcome.ranks[3], (std::vector<float>{1, 3, 3, 3, 3, 3}));
}

TEST(TrainerGroup, SendsFromStageToStage) {
  const auto outcome = run_square([](Session& session, Rank rank) -> core::Result<std::vector<float>> {
    auto& row = *TRY(session.group("row"));
    std::vector<float> activation{static_cast<float>(10 + rank.value)};
    if (row.index() == 0) {
      TRY(row.wait(TRY(row.send(bytes_of(activation), DType::f32, 1))));
      TRY(row.wait(TRY(row.receive(bytes_of(activation), DType::f32, 1))));
    } else {
      TRY(row.wait(TRY(row.receive(bytes_of(activation), DType::f32, 0))));
      activation[0] += 0.5F;
      TRY(row.wait(TRY(row.send(bytes_of(activation), DType::f32, 0))));
    }
    return activation;
  });

  ASSERT_EQ(problems_of(outcome.report), "");
  EXPECT_EQ(outcome.ranks[0], std::vector<float>{10.5F});
  EXPECT_EQ(outcome.ranks[2], std::vector<float>{12.5F});
}

TEST(TrainerGroup, UsedDifferentlyEndsTheJobNamingTheOperation) {
  const auto outcome = run_square([](Session& session, Rank rank) -> core::Result<std::vector<float>> {
    auto& row = *TRY(session.group("row"));
    std::vector<float> values(rank.value == 1 ? 5 : 4, 1);
    TRY(row.wait(TRY(row.all_reduce(bytes_of(values), DType::f32))));
    // The other row goes on until it is told.
    auto& column = *TRY(session.group("column"));
    TRY(column.wait(TRY(column.all_reduce(bytes_of(values), DType::f32))));
    return values;
  });

  for (const auto& result : outcome.report.results) {
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message.find("all_reduce 1 of group row"), std::string::npos)
        << result.error().message;
  }
}

TEST(TrainerGroup, OfARankThatDiesEndsForTheOthers) {
  SimulationOptions simulation;
  simulation.ranks = {4};
  simulation.faults.push_back(
      {.kind = SimulatedFault::Kind::kill, .rank = {3}, .at = std::chrono::milliseconds(3)});

  const auto outcome = simulate_job<float>(simulation, [&](SimulatedRank& rank) {
    return train_on_square(rank, core::Strategy::zero3, 1000,
                           [&] { rank.compute(std::chrono::microseconds(50)); });
  });

  EXPECT_EQ(violations_of(outcome.report), "");
  for (int rank = 0; rank < 3; ++rank) {
    const auto& result = outcome.report.results[static_cast<std::size_t>(rank)];
    ASSERT_FALSE(result) << "rank " << rank;
    EXPECT_EQ(result.error().code, core::Errc::peer_lost) << result.error().message;
  }
}

TEST(TrainerGroup, ThatIsMissingIsNamedWithExistingOnes) {
  const auto outcome = run_square([](Session& session, Rank) -> core::Result<std::vector<float>> {
    const auto found = session.group("diagonal");
    EXPECT_FALSE(found);
    EXPECT_EQ(found.error().message, "there is no group 'diagonal'; SessionOptions::groups has row, column");
    return std::vector<float>{};
  });

  EXPECT_EQ(problems_of(outcome.report), "");
}

TEST(TrainerGroup, SaysWhatCannotBeWhenTheJobIsJoined) {
  const auto refusal = [](std::vector<TrainerGroupSpec> groups) {
    SimulationOptions simulation;
    simulation.ranks = {2};
    const auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
      auto options = square_options(core::Strategy::zero1);
      options.groups = groups;
      TRY(Session::join(rank, options, three_units()));
      return true;
    });
    return outcome.report.results[0] ? "" : outcome.report.results[0].error().message;
  };

  EXPECT_EQ(refusal({{"a b", {{{0}, {1}}}}}), "a group is named 'a b'; use letters, digits, '-' and '_'");
  EXPECT_EQ(refusal({{"a", {{{0}, {1}}}}, {"a", {{{0}, {1}}}}}),
            "two groups are named a; give each a name of its own");
  EXPECT_EQ(refusal({{"a", {{{0}}}}}),
            "group a names rank 1 0 times; every rank is in exactly one part of a group, if need be alone");
  EXPECT_EQ(refusal({{"a", {{{0}, {1}}, {{2}}}}}), "group a has rank 2, but the job has ranks 0 to 1");
}

TEST(TrainerGroup, ThatRanksCutDifferentlyIsAMismatch) {
  SimulationOptions simulation;
  simulation.ranks = {4};
  const auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
    auto options = square_options(core::Strategy::zero1);
    if (rank.rank().value == 2) std::swap(options.groups[0].members, options.groups[1].members);
    TRY(Session::join(rank, options, three_units()));
    return true;
  });

  for (const auto& result : outcome.report.results) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, core::Errc::mismatch) << result.error().message;
  }
}

}  // namespace
}  // namespace troupe::actors
