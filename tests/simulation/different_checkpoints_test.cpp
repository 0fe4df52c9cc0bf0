#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "actors/world/simulation/storage.hpp"
#include "tests/simulation/altered_world.hpp"
#include "tests/simulation/still_job.hpp"

namespace troupe::actors {
namespace {

using core::LoadMode;
using testing::HasSubstr;

constexpr int kReaders = 4;

struct Loading {
  const char* name;
  LoadMode mode = LoadMode::read;
  int pipeline = 1;

  friend std::ostream& operator<<(std::ostream& out, const Loading& of) { return out << of.name; }
};

StillRank rank_of(const Loading& loading, core::Rank rank, float first_value) {
  StillRank still;
  still.session.training.strategy = core::Strategy::zero1;
  still.session.training.pipeline_parallel = loading.pipeline;
  still.session.checkpoint.load.mode = loading.mode;
  still.session.training.lanes = kReaders;
  const int stage = rank.value / (kReaders / loading.pipeline);
  still.parameters = {{fmt::format("stage.{}.w", stage), {64}}, {fmt::format("stage.{}.b", stage), {64}}};
  still.first_value = first_value;
  return still;
}

/// Saves of two seeds of the simulator have different ids, even if they save the same.
void save_on(SimulatedStorage& disk, const Loading& loading, std::uint64_t seed, float first_value) {
  SimulationOptions simulation;
  simulation.ranks = {kReaders};
  simulation.seed = seed;
  simulation.storage = &disk;
  const auto saved = simulate_job<StillValues>(simulation, [&](SimulatedRank& rank) {
    return save_still(rank, rank_of(loading, rank.rank(), first_value));
  });
  ASSERT_EQ(problems_of(saved.report), "");
}

/// The last rank has a disk of its own.
JobOutcome<StillValues> restore_from(SimulatedStorage& disk, SimulatedStorage& of_last,
                                     const Loading& loading) {
  SimulationOptions simulation;
  simulation.ranks = {kReaders};
  simulation.storage = &disk;
  return simulate_job<StillValues>(simulation, [&](SimulatedRank& rank) {
    AlteredWorld world(rank);
    if (rank.rank().value == kReaders - 1) world.other_storage = &of_last;
    return restore_still(world, rank_of(loading, rank.rank(), -1));
  });
}

class DifferentCheckpoints : public testing::TestWithParam<Loading> {};

/// The hash in the last line of its manifest.
std::string hash_on(SimulatedStorage& disk) {
  const std::string path = "step_00000001/manifest.json";
  const auto bytes = disk.read(path, *disk.size(path) - 19, 16);
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

void expect_mismatch(SimulatedStorage& disk, SimulatedStorage& other, const Loading& loading) {
  const auto restored = restore_from(disk, other, loading);

  ASSERT_EQ(violations_of(restored.report), "");
  for (const auto& result : restored.report.results) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, core::Errc::mismatch) << result.error().message;
    EXPECT_THAT(
        result.error().message,
        HasSubstr(fmt::format("expected all ranks to see the same checkpoint step_00000001, found one "
                              "whose manifest has the hash {} on rank 0 and one with {} on rank 3",
                              hash_on(disk), hash_on(other))));
  }
}

TEST_P(DifferentCheckpoints, OfOneNameAreLoadedByNoRank) {
  SimulatedStorage disk({});
  SimulatedStorage other({});
  save_on(disk, GetParam(), 1, 0);
  save_on(other, GetParam(), 2, 1000);

  expect_mismatch(disk, other, GetParam());
}

TEST_P(DifferentCheckpoints, DifferByTheirSaveThoughTheirTensorsAreEqual) {
  SimulatedStorage disk({});
  SimulatedStorage other({});
  save_on(disk, GetParam(), 1, 0);
  save_on(other, GetParam(), 2, 0);

  expect_mismatch(disk, other, GetParam());
}

TEST_P(DifferentCheckpoints, AreNotThoseThatWereCopied) {
  SimulatedStorage disk({});
  SimulatedStorage copy({});
  save_on(disk, GetParam(), 1, 0);
  save_on(copy, GetParam(), 1, 0);

  const auto restored = restore_from(disk, copy, GetParam());

  ASSERT_EQ(problems_of(restored.report), "");
  for (const auto& values : restored.ranks) EXPECT_EQ(values.front(), 0);
}

TEST_P(DifferentCheckpoints, AreNotLookedForWhereARankHasNone) {
  SimulatedStorage disk({});
  SimulatedStorage empty({});
  save_on(disk, GetParam(), 1, 0);

  const auto restored = restore_from(disk, empty, GetParam());

  for (const auto& result : restored.report.results) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, core::Errc::corrupt) << result.error().message;
    EXPECT_THAT(result.error().message, HasSubstr("rank 3: "));
  }
}

INSTANTIATE_TEST_SUITE_P(Loads, DifferentCheckpoints,
                         testing::Values(Loading{"ReadByEachRank"}, Loading{"Exchanged", LoadMode::exchange},
                                         Loading{"Automatic", LoadMode::automatic},
                                         Loading{"OfAPipeline", LoadMode::automatic, 2}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace troupe::actors
