#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/world/random.hpp"
#include "core/errors.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kKilledSeeds = 500;

bool names(const core::Error& error, core::Rank rank) {
  return error.message.find(fmt::format("rank {}", rank.value)) != std::string::npos;
}

std::chrono::nanoseconds length_of(int ranks, const TinyTrainerOptions& options) {
  return simulate_tiny(ranks, 0, options).report.virtual_time;
}

// Covers beyond-8.
TEST(SimulatedFaults, KilledRankEndsEverySurvivorNamingIt) {
  auto options = tiny_job(core::Strategy::zero1);
  options.session.join_deadline = std::chrono::milliseconds(500);
  const auto length = length_of(4, options);
  int in_good_order = 0;

  for (std::uint64_t seed = 0; seed < kKilledSeeds; ++seed) {
    RandomStream draw(seed, "faults_test", "kill");
    const core::Rank victim{static_cast<int>(draw.below(4))};
    const auto at = draw.up_to(length + length / 10);
    set_mesh(options.session.training, mesh_in_turn(4, seed));
    auto report = simulate_tiny(4, seed, options, {{SimulatedFault::Kind::kill, victim, at}}).report;
    const auto label = fmt::format("seed {}: rank {} killed at {} of {} us", seed, victim.value,
                                   at.count() / 1000, length.count() / 1000);
    ASSERT_EQ(violations_of(report), "") << label;
    ASSERT_LT(report.virtual_time, std::chrono::seconds(2)) << label << " was found out by a deadline only";
    if (report.steps_committed == 5 && problems_of(report).empty()) {
      in_good_order += 1;
      continue;
    }
    for (int rank = 0; rank < 4; ++rank) {
      const auto& result = report.results[static_cast<std::size_t>(rank)];
      if (rank == victim.value || (result && report.steps_committed == 5)) continue;
      ASSERT_FALSE(result) << label << ", and rank " << rank << " went on";
      // A rank that was still on its way when rank 0 gave the job up hears no more than that.
      bool never_came = report.steps_committed == 0 && names(result.error(), {0});
      ASSERT_TRUE(never_came || names(result.error(), victim)) << label << ": " << result.error().message;
    }
  }

  EXPECT_LT(in_good_order, static_cast<int>(kKilledSeeds) / 5) << "most kills hit a job that runs";
}

TEST(SimulatedFaults, AHungRankEndsEveryRankAtTheDeadline) {
  using namespace std::chrono_literals;
  auto options = tiny_job(core::Strategy::zero1);
  options.session.step_deadline = 2s;
  options.steps = 20;
  const auto at = length_of(4, options) / 2;

  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto mesh = mesh_in_turn(4, seed);
    set_mesh(options.session.training, mesh);
    const core::Rank victim{static_cast<int>(seed % 4)};
    auto report = simulate_tiny(4, seed, options, {{SimulatedFault::Kind::hang, victim, at}}).report;
    ASSERT_EQ(violations_of(report), "");
    EXPECT_GE(report.virtual_time, at + 2s - 1ms);
    EXPECT_LE(report.virtual_time, at + 2s + 100ms);
    for (const auto& result : report.results) {
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().code, core::Errc::timeout);
      EXPECT_THAT(result.error().message, HasSubstr(fmt::format("no sign of rank {}", victim.value)));
    }
  }
}

TEST(SimulatedFaults, TrainerGivingUpEndsTheOthersNamingItsRank) {
  auto options = tiny_job(core::Strategy::zero1);
  options.session.first_values = FirstValues::broadcast;  // the quitter writes none
  for (int turn = 0; turn < 16; ++turn) {
    set_mesh(options.session.training, mesh_in_turn(4, static_cast<std::uint64_t>(turn)));
    const int quitter = turn % 4;
    SimulationOptions simulation;
    simulation.ranks = {4};
    auto outcome = simulate_job<TinyTrainerResult>(
        simulation, [&](SimulatedRank& rank) -> core::Result<TinyTrainerResult> {
          const auto place = TinyPlace::of(rank.rank(), rank.world_size(), options.session.training);
          if (rank.rank().value != quitter) return train_tiny(rank, options, [](auto) {});
          auto session = TRY(Session::join(rank, options.session, tiny_parameters(options, place)));
          TRY(session->begin_step(0.01));
          return core::fail(core::Errc::io, "no more data");
        });

    ASSERT_EQ(violations_of(outcome.report), "");
    EXPECT_LT(outcome.report.virtual_time, std::chrono::seconds(1));
    for (int rank = 0; rank < 4; ++rank) {
      const auto& result = outcome.report.results[static_cast<std::size_t>(rank)];
      ASSERT_FALSE(result);
      EXPECT_TRUE(rank == quitter || names(result.error(), {quitter})) << result.error().message;
    }
  }
}

TEST(SimulatedFaults, SlowRankChangesTheTimeAndNotTheBits) {
  for (const auto& mesh : meshes_for(4)) {
    const auto options = tiny_job(mesh);
    const auto healthy = simulate_tiny(4, 5, options);
    for (int rank = 0; rank < 4; ++rank) {
      const auto slow = simulate_tiny(4, 5, options, {{SimulatedFault::Kind::slow, {rank}, {}, 20}});

      EXPECT_EQ(problems_of(slow.report), "");
      EXPECT_GT(slow.report.virtual_time, healthy.report.virtual_time);
      for (const auto& result : slow.ranks) EXPECT_EQ(result.state_hash, healthy.ranks[0].state_hash);
    }
  }
}

}  // namespace
}  // namespace troupe::actors
