#include <fmt/format.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/planes/checkpoint/reader.hpp"
#include "tests/actors/planes/checkpoint/faulty_storage.hpp"
#include "tests/simulation/altered_world.hpp"
#include "tests/simulation/checkpoint_job.hpp"

namespace troupe::actors {
namespace {

using core::Strategy;
using messages::Role;
using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using namespace std::chrono_literals;

constexpr std::int64_t kSteps = 4;
constexpr std::int64_t kEnd = 6;

SimulatedFault kill_in(int rank, Role role, std::string state) {
  SimulatedFault fault;
  fault.rank = {rank};
  fault.role = role;
  fault.state = std::move(state);
  return fault;
}

SimulatedStorage disk_of(std::uint64_t seed) {
  SimulatedStorageOptions options;
  options.seed = seed;
  return SimulatedStorage(options);
}

/// The power goes, the disk keeps its promises, and another number of ranks goes on from at least the newest
/// checkpoint that was called committed.
void expect_survival(SimulatedStorage& disk, const SimulationReport& before, int ranks, std::uint64_t seed) {
  disk.crash();
  const auto committed = committed_steps(before);

  const auto [from, complaints] = go_on(disk, ranks, kEnd, seed + 1000);

  EXPECT_EQ(complaints, "");
  EXPECT_GE(from, committed.empty() ? 0 : committed.back());
  for (auto step : committed) {
    const auto name = core::checkpoint_name({step});
    const auto manifest = check_quickly(disk, name);
    ASSERT_TRUE(manifest) << manifest.error().message;
    EXPECT_TRUE(verify_checkpoint(disk, name, *manifest)) << name;
  }
}

struct Entered {
  Role role;
  const char* state;
};

std::vector<Entered> all_states() {
  std::vector<Entered> entered;
  for (const char* state : {"accepted", "staging", "staged", "written", "durable", "committed"})
    entered.push_back({Role::checkpoint_writer, state});
  for (const char* state : {"gathering", "preparing", "writing", "committing", "idle"})
    entered.push_back({Role::checkpoint_coordinator, state});
  return entered;
}

// Covers ranks-18.
TEST(CheckpointFaults, RankKilledInAnySaveStateLosesNothingCommitted) {
  int killed = 0, spared = 0;  // of jobs with units
  std::uint64_t turn = 0;
  for (const auto& [role, state] : all_states()) {
    for (int victim = 0; victim < (role == Role::checkpoint_writer ? 3 : 1); ++victim) {
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        SCOPED_TRACE(fmt::format("rank {} in {}, seed {}", victim, state, seed));
        auto disk = disk_of(seed);
        auto simulation = machines_of(disk, 3, seed);
        simulation.faults = {kill_in(victim, role, state)};

        const auto mesh = saving_mesh(3, turn++);
        const auto strategy = mesh.strategy;
        const auto outcome = simulate_tiny(simulation, saving_job(mesh, kSteps));

        ASSERT_EQ(violations_of(outcome.report), "");
        // A rank whose part of each unit is padding has nothing to stage.
        const bool was_killed = !outcome.report.results[static_cast<std::size_t>(victim)];
        ASSERT_TRUE(was_killed || has_units(strategy)) << "it was to be killed";
        (was_killed ? killed : spared) += has_units(strategy) ? 1 : 0;
        ASSERT_LT(outcome.report.virtual_time, 2s) << "a deadline found it out";
        expect_survival(disk, outcome.report, 1 + static_cast<int>(seed), seed);
      }
    }
  }
  EXPECT_GT(killed, 3 * spared);
}

TEST(CheckpointFaults, RankKilledDuringAFailingSaveLosesNothingEither) {
  for (const char* state : {"failed", "aborted"}) {
    for (int victim : {0, 1}) {
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        SCOPED_TRACE(fmt::format("rank {} {}, seed {}", victim, state, seed));
        SimulatedStorageOptions options;
        options.seed = seed;
        options.write_failure = 0.05;
        SimulatedStorage disk(options);
        auto simulation = machines_of(disk, 2, seed);
        simulation.faults = {kill_in(victim, Role::checkpoint_writer, state)};

        const auto outcome =
            simulate_tiny(simulation, saving_job(saving_mesh(2, seed + (victim == 0 ? 0 : 2)), kSteps));

        ASSERT_EQ(violations_of(outcome.report), "");
        expect_survival(disk, outcome.report, 2, seed);
      }
    }
  }
}

// Covers local-15.
TEST(CheckpointFaults, AnyDiskOperationMayFailWithOnlyTheSave) {
  using Fault = FaultyStorage::Fault;
  for (auto fault : {Fault::one_fails, Fault::one_lies, Fault::all_follow}) {
    std::uint64_t operations = 1;
    for (std::uint64_t at = 0; at < operations; ++at) {
      SCOPED_TRACE(fmt::format("fault {} at operation {}", static_cast<int>(fault), at));
      auto disk = disk_of(at);
      FaultyStorage faulty(disk);
      faulty.fail_at(at, fault);
      auto options = saving_job(saving_mesh(2, at), kSteps, 2);
      options.session.checkpoint.retention.keep_last = 2;

      const auto outcome = simulate_tiny(machines_of(faulty, 2, at), options);

      operations = std::max(operations, faulty.operations());
      ASSERT_EQ(complaints_of(outcome, kSteps), "");
      ASSERT_EQ(outcome.report.saves.size(), 2u);
      ASSERT_GE(committed_steps(outcome.report).size(), fault == Fault::all_follow ? 0u : 1u);
      expect_survival(disk, outcome.report, 3, at);
      if (HasFailure()) return;
    }
  }
}

TEST(CheckpointFaults, AFullDiskFailsSavesAndNotTraining) {
  auto measure = disk_of(0);
  ASSERT_EQ(complaints_of(simulate_tiny(machines_of(measure, 2, 0), saving_job(Strategy::zero1, 2)), 2), "");
  const auto two = measure.used_bytes();
  std::set<std::size_t> counts;

  for (std::uint64_t capacity = 0; capacity < two + 200; capacity += 97) {
    SCOPED_TRACE(capacity);
    SimulatedStorageOptions options;
    options.seed = capacity;
    options.capacity_bytes = capacity;
    SimulatedStorage disk(options);

    const auto outcome = simulate_tiny(machines_of(disk, 2, capacity), saving_job(Strategy::zero1, kSteps));

    ASSERT_EQ(complaints_of(outcome, kSteps), "");
    for (const auto& save : outcome.report.saves) {
      if (!save.failure.failed) continue;
      EXPECT_THAT(save.failure.message, HasSubstr("no space left"));
    }
    counts.insert(committed_steps(outcome.report).size());
    expect_survival(disk, outcome.report, 3, capacity);
  }

  EXPECT_THAT(counts, IsSupersetOf({0u, 1u, 2u}));
}

TEST(CheckpointFaults, DiskThatLiesAboutSyncsLosesNoEarlierCheckpoint) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    auto disk = disk_of(seed);
    const auto honest = simulate_tiny(machines_of(disk, 2, seed), saving_job(saving_mesh(2, seed), 2, 2));
    ASSERT_EQ(committed_steps(honest.report), (std::vector<std::int64_t>{2}));
    disk.set_lying(true);
    auto options = saving_job(saving_mesh(2, seed), kSteps);
    options.restore = true;
    const auto lied_to = simulate_tiny(machines_of(disk, 2, seed + 7), options);
    ASSERT_EQ(complaints_of(lied_to, kSteps), "");
    disk.crash();
    disk.set_lying(false);

    const auto [from, complaints] = go_on(disk, 3, kEnd, seed);

    EXPECT_EQ(complaints, "");
    EXPECT_GE(from, 2);
  }
}

TEST(CheckpointFaults, ATornManifestIsPassedOver) {
  auto disk = disk_of(0);
  ASSERT_EQ(complaints_of(simulate_tiny(machines_of(disk, 2, 0), saving_job(Strategy::zero1, 3)), 3), "");
  const std::string path = "step_00000003/manifest.json";
  const auto whole = *disk.read(path, 0, 1 << 20);
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += 61) {
    auto file = std::move(*disk.create(path));
    ASSERT_TRUE(file->append(std::span(whole).first(bytes)));

    const auto [from, complaints] = go_on(disk, 3, 4, bytes);

    EXPECT_EQ(complaints, "") << bytes;
    EXPECT_EQ(from, 2) << bytes;
  }
}

TEST(CheckpointFaults, ASlowDiskHoldsTrainingUpAndChangesNothing) {
  auto disk = disk_of(0);
  auto simulation = machines_of(disk, 3, 0);
  simulation.io_delay = 100ms;

  const auto outcome = simulate_tiny(simulation, saving_job(Strategy::zero1, kSteps));

  EXPECT_EQ(complaints_of(outcome, kSteps), "");
  EXPECT_EQ(committed_steps(outcome.report), (std::vector<std::int64_t>{1, 2, 3, 4}));
  EXPECT_GT(outcome.report.virtual_time, 1s);
  expect_survival(disk, outcome.report, 2, 0);
}

TEST(CheckpointFaults, SlowDiskFailsTheSaveNamingRanksNotTraining) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    auto disk = disk_of(seed);
    auto simulation = machines_of(disk, 3, seed);
    simulation.io_delay = 2s;
    auto options = saving_job(saving_mesh(3, seed), kSteps);
    options.session.checkpoint.deadline = 1s;

    const auto outcome = simulate_tiny(simulation, options);

    EXPECT_EQ(complaints_of(outcome, kSteps), "");
    ASSERT_EQ(outcome.report.saves.size(), 4u);
    bool late = false;
    for (const auto& save : outcome.report.saves) {
      if (!save.failure.failed) continue;
      late = true;
      EXPECT_THAT(save.failure.message, HasSubstr("did not end within 1 s: it still waits for"));
    }
    EXPECT_TRUE(late);
    expect_survival(disk, outcome.report, 2, seed);
  }
}

TEST(CheckpointFaults, SilentDiskDoesNotEndTheJob) {
  auto disk = disk_of(0);
  auto simulation = machines_of(disk, 3, 1);
  simulation.io_delay = std::chrono::hours(2);
  simulation.time_limit = std::chrono::hours(100);
  auto options = saving_job(Strategy::zero1, kSteps);
  options.session.checkpoint.deadline = core::CheckpointOptions{}.deadline;

  const auto outcome = simulate_tiny(simulation, options);

  EXPECT_EQ(complaints_of(outcome, kSteps), "");
  EXPECT_EQ(outcome.report.saves.size(), 4u);
  expect_survival(disk, outcome.report, 2, 0);
}

TEST(CheckpointFaults, QueueOfSavesMayOutlastOnesDeadlines) {
  auto disk = disk_of(3);
  auto simulation = machines_of(disk, 2, 3);
  simulation.io_delay = 100ms;
  auto options = saving_job(Strategy::zero1, 12);
  // All that is to be saved finds room at once: training runs ahead of the disk.
  options.session.checkpoint.staging_bytes = 1 << 20;
  options.session.checkpoint.chunk_bytes = 1 << 16;
  options.session.checkpoint.deadline = 700ms;

  const auto outcome = simulate_tiny(simulation, options);

  EXPECT_EQ(complaints_of(outcome, 12), "");
  EXPECT_EQ(committed_steps(outcome.report).size(), 12u);
}

// Covers local-13.
TEST(CheckpointFaults, OverlappingSaveIsQueuedOrRefusedAlikeEverywhere) {
  for (auto when_busy : {core::WhenBusy::queue, core::WhenBusy::refuse}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      auto disk = disk_of(seed);
      auto simulation = machines_of(disk, 3, seed);
      simulation.io_delay = 5ms;
      auto options = saving_job(saving_mesh(3, seed), kSteps);
      options.session.checkpoint.when_busy = when_busy;
      options.session.checkpoint.staging_bytes = 1 << 20;

      const auto outcome = simulate_tiny(simulation, options);

      ASSERT_EQ(complaints_of(outcome, kSteps), "");
      const auto committed = committed_steps(outcome.report);
      EXPECT_EQ(committed.size() == 4, when_busy == core::WhenBusy::queue);
      EXPECT_THAT(committed, Contains(1));
      for (const auto& rank : outcome.ranks) {
        ASSERT_EQ(rank.saves.size(), 4u);
        for (const auto& save : rank.saves) {
          const bool is_known = save.committed || save.committed.error().code == core::Errc::unavailable;
          EXPECT_TRUE(is_known) << save.committed.error().message;
        }
      }
      expect_survival(disk, outcome.report, 2, seed);
    }
  }
}

TEST(CheckpointFaults, RankWithAnotherStructureFailsOnlyTheSave) {
  // Every rank has every tensor.
  const auto options = saving_job(Strategy::ddp, kSteps);
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    auto disk = disk_of(seed);
    const auto outcome =
        simulate_job<TinyTrainerResult>(machines_of(disk, 3, seed), [&](SimulatedRank& rank) {
          AlteredWorld world(rank);
          if (rank.rank().value == 1) {
            world.alter_structure = [](core::SaveStructure& structure) {
              structure.tensors.back().dtype = core::DType::f64;
            };
          }
          return train_tiny(world, options, [&](std::chrono::nanoseconds time) { rank.compute(time); });
        });

    ASSERT_EQ(complaints_of(outcome, kSteps), "");
    ASSERT_EQ(outcome.report.saves.size(), 4u);
    for (const auto& save : outcome.report.saves) {
      EXPECT_EQ(save.failure.code, core::Errc::mismatch) << save.failure.message;
      EXPECT_THAT(save.failure.message, HasSubstr("rank 1"));
    }
    expect_survival(disk, outcome.report, 2, seed);
    EXPECT_THAT(*disk.list(""), testing::IsEmpty());
  }
}

TEST(CheckpointFaults, HungRankEndsTheJobAndTheNextResumes) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    auto disk = disk_of(seed);
    auto simulation = machines_of(disk, 3, seed);
    SimulatedFault hang = kill_in(static_cast<int>(seed % 3), Role::checkpoint_writer, "durable");
    hang.kind = SimulatedFault::Kind::hang;
    simulation.faults = {hang};
    auto options = saving_job(saving_mesh(3, seed), kSteps);
    options.session.step_deadline = 2s;

    const auto outcome = simulate_tiny(simulation, options);

    ASSERT_EQ(violations_of(outcome.report), "");
    expect_survival(disk, outcome.report, 2, seed);
  }
}

}  // namespace
}  // namespace troupe::actors
