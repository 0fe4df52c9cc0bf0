#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "tests/simulation/altered_world.hpp"
#include "tests/simulation/simulated_job.hpp"
#include "tests/simulation/watched_storage.hpp"

namespace troupe::actors {
namespace {

using core::LoadMode;
using core::Strategy;
using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr std::int64_t kSavedAt = 3;
constexpr std::int64_t kSteps = 5;
constexpr const char* kNewest = "step_00000003";

TinyTrainerOptions job_of(const TinyMesh& mesh, LoadMode mode) {
  auto options = tiny_job(mesh);
  options.steps = kSteps;
  options.restore = true;
  auto& checkpoint = options.session.checkpoint;
  checkpoint.staging_bytes = 2048;
  checkpoint.chunk_bytes = 256;
  checkpoint.deadline = 30s;
  checkpoint.load.mode = mode;
  checkpoint.load.exchange_bytes = 96;  // so that there are many rounds
  return options;
}

std::uint64_t uninterrupted_hash() {
  auto options = tiny_job(Strategy::ddp);
  options.steps = kSteps;
  return simulate_tiny(1, 1, options).ranks[0].state_hash;
}

/// A disk with a checkpoint of each of the first three steps.
void save_on(SimulatedStorage& disk, int ranks, const TinyMesh& mesh, std::int64_t every = kSavedAt) {
  auto options = job_of(mesh, LoadMode::read);
  options.steps = kSavedAt;
  options.save_every = every;
  options.restore = false;
  SimulationOptions simulation;
  simulation.ranks = {ranks};
  simulation.seed = 5;
  simulation.storage = &disk;
  ASSERT_EQ(problems_of(simulate_tiny(simulation, options).report), "");
}

/// A job whose ranks see the same disk, each through a storage of its own.
struct Watched {
  Watched(SimulatedStorage& disk, int ranks) {
    for (int rank = 0; rank < ranks; ++rank) storages.push_back(std::make_unique<WatchedStorage>(disk));
    simulation.ranks = {ranks};
    simulation.seed = 7;
    simulation.storage = &disk;
  }

  JobOutcome<TinyTrainerResult> run(const TinyTrainerOptions& options) {
    return simulate_job<TinyTrainerResult>(simulation, [&](SimulatedRank& rank) {
      AlteredWorld world(rank);
      world.other_storage = storages[static_cast<std::size_t>(rank.rank().value)].get();
      return train_tiny(world, options, [&](std::chrono::nanoseconds time) { rank.compute(time); });
    });
  }
  std::uint64_t bytes_read() const {
    std::uint64_t bytes = 0;
    for (const auto& storage : storages) bytes += storage->bytes_read();
    return bytes;
  }

  std::vector<std::unique_ptr<WatchedStorage>> storages;
  SimulationOptions simulation;
};

struct FileBytes {
  std::uint64_t all = 0;  ///< headers and tensors
  std::uint64_t headers = 0;
};

FileBytes file_bytes(Storage& disk) {
  const auto manifest = check_quickly(disk, kNewest);
  EXPECT_TRUE(manifest);
  FileBytes bytes;
  for (const auto& file : manifest->files) {
    bytes.all += file.bytes;
    bytes.headers += file.header_bytes;
  }
  return bytes;
}

// Covers save-13.
TEST(LoadExchange, GivesTheBitsOfReadingAndReadsOnce) {
  const auto expected = uninterrupted_hash();
  const std::vector<int> worlds{1, 2, 3, 4, 8};
  std::uint64_t turn = 0;
  for (int from : worlds) {
    for (const auto& saved : meshes_for(from)) {
      if (from > 4 && !saved.is_data_parallel()) continue;
      SimulatedStorage disk({});
      save_on(disk, from, saved);
      const auto [once, headers] = file_bytes(disk);
      for (int to : worlds) {
        for (int i = 0; i < (saved.is_data_parallel() ? 2 : 1); ++i) {
          const auto loaded = mesh_in_turn(to, turn++);
          for (auto mode : {LoadMode::exchange, LoadMode::read}) {
            SCOPED_TRACE(fmt::format("{} ranks of {} to {} of {}, {}", from, saved.name(), to, loaded.name(),
                                     core::name_of(mode)));
            Watched job(disk, to);

            const auto outcome = job.run(job_of(loaded, mode));

            ASSERT_EQ(problems_of(outcome.report), "");
            for (const auto& rank : outcome.ranks) {
              ASSERT_TRUE(rank.restored.has_value());
              ASSERT_EQ(rank.restored->name, kNewest);
              ASSERT_EQ(rank.state_hash, expected);
            }
            if (!loaded.is_data_parallel()) {
              // Each part of the model is read for itself.
              ASSERT_GE(job.bytes_read(), once);
            } else if (has_units(loaded.strategy) && to > 1) {
              // Ranks that have nothing to exchange read the headers of their files for themselves.
              const auto others = static_cast<std::uint64_t>(to - 1);
              ASSERT_GE(job.bytes_read(), once);
              if (mode == LoadMode::exchange) {
                ASSERT_LE(job.bytes_read(), once + others * headers);
              }
            } else if (mode == LoadMode::exchange || to == 1) {
              ASSERT_EQ(job.bytes_read(), once);
            } else if (loaded.strategy == Strategy::ddp) {
              ASSERT_EQ(job.bytes_read(), once * static_cast<std::uint64_t>(to));
            } else {
              ASSERT_GT(job.bytes_read(), once);
            }
          }
        }
      }
    }
  }
}

TEST(LoadExchange, IsChosenByTheCostRule) {
  SimulatedStorage disk({});
  save_on(disk, 2, Strategy::ddp);
  const auto once = file_bytes(disk).all;
  auto options = job_of(Strategy::ddp, LoadMode::automatic);
  auto& costs = options.session.checkpoint.load.costs;

  costs = {1e9, 1e9, 100e9};
  Watched slow_disk(disk, 4);
  ASSERT_EQ(problems_of(slow_disk.run(options).report), "");
  costs = {1e9, 100e9, 0.1e9};
  Watched slow_network(disk, 4);
  ASSERT_EQ(problems_of(slow_network.run(options).report), "");

  EXPECT_EQ(slow_disk.bytes_read(), once);
  EXPECT_EQ(slow_network.bytes_read(), 4 * once);
}

/// All ranks fall back to the step before, for one reason.
void expect_fallback(Watched& job, Strategy strategy, const std::string& reason) {
  const auto outcome = job.run(job_of(strategy, LoadMode::exchange));

  ASSERT_EQ(problems_of(outcome.report), "");
  for (const auto& rank : outcome.ranks) {
    ASSERT_TRUE(rank.restored.has_value());
    ASSERT_EQ(rank.restored->name, "step_00000002");
    ASSERT_EQ(rank.restored->passed_over.size(), 1u);
    ASSERT_THAT(rank.restored->passed_over[0], HasSubstr(reason));
    ASSERT_EQ(rank.state_hash, uninterrupted_hash());
  }
}

// Covers save-19.
TEST(LoadExchange, FlippedBitsOneRankFindsAreSkippedByAll) {
  for (auto strategy : {Strategy::ddp, Strategy::zero1}) {
    SimulatedStorage disk({});
    save_on(disk, 3, strategy, 1);
    const auto manifest = check_quickly(disk, kNewest);
    ASSERT_TRUE(manifest);
    for (const auto& file : manifest->files) {
      const auto path = path_in(kNewest, file.name);
      const auto good = *disk.read(path, 0, file.bytes);
      for (std::size_t at : {std::size_t{9}, std::size_t{file.header_bytes}, good.size() - 1}) {
        SCOPED_TRACE(fmt::format("byte {} of {}", at, path));
        auto bad = good;
        bad[at] ^= std::byte{1};
        ASSERT_TRUE((*disk.create(path))->append(bad));
        Watched job(disk, 4);

        expect_fallback(job, strategy, "not match");

        ASSERT_TRUE((*disk.create(path))->append(good));
        if (HasFailure()) return;
      }
    }
  }
}

TEST(LoadExchange, WhatOneRankCannotReadIsSkippedByAll) {
  constexpr int kRanks = 4;
  for (auto strategy : {Strategy::ddp, Strategy::zero1}) {
    SimulatedStorage disk({});
    save_on(disk, 2, strategy, 1);
    for (int rank = 0; rank < kRanks; ++rank) {
      for (const std::string part : {"step_00000003/manifest.json", "step_00000003/shard"}) {
        SCOPED_TRACE(fmt::format("{} at rank {}", part, rank));
        Watched job(disk, kRanks);
        job.storages[static_cast<std::size_t>(rank)]->refuses = [part](std::string_view path) {
          return path.starts_with(part);
        };

        expect_fallback(job, strategy, fmt::format("rank {}: {}", rank, part));

        if (HasFailure()) return;
      }
    }
    ASSERT_TRUE(disk.remove("step_00000003/shard_00001_0.safetensors"));
    Watched job(disk, kRanks);
    expect_fallback(job, strategy, "rank 0: ");
  }
}

struct Loaded {
  std::chrono::nanoseconds begin{};
  std::chrono::nanoseconds end{};
  std::uint64_t bits = 0;
};

/// Joins, loads and leaves.
core::Result<Loaded> load(SimulatedRank& rank, const TinyTrainerOptions& options,
                          core::DType dtype = core::DType::f32, bool optimizer = true) {
  auto specs = tiny_parameters(options);
  for (auto& spec : specs) spec.dtype = dtype;
  auto session = TRY(Session::join(rank, options.session, specs));
  Loaded loaded;
  loaded.begin = rank.device().now();
  RestoreOptions restoring;
  restoring.optimizer = optimizer;
  const auto restored = TRY(session->restore(restoring));
  if (!restored) return core::fail(core::Errc::not_found, "there is no checkpoint");
  loaded.end = rank.device().now();
  for (std::uint32_t p = 0; p < specs.size(); ++p)
    loaded.bits = core::hash64(std::as_bytes(TRY(session->parameter<std::byte>({p}))), loaded.bits);
  TRY(session->leave());
  return loaded;
}

JobOutcome<Loaded> load_by(int ranks, SimulatedStorage& disk, const TinyTrainerOptions& options,
                           const std::vector<SimulatedFault>& faults = {}) {
  SimulationOptions simulation;
  simulation.ranks = {ranks};
  simulation.storage = &disk;
  simulation.faults = faults;
  return simulate_job<Loaded>(simulation, [&](SimulatedRank& rank) { return load(rank, options); });
}

TEST(LoadExchange, ConvertsToOtherDtypesAsReadingDoes) {
  SimulatedStorage disk({});
  save_on(disk, 2, Strategy::zero1);
  std::set<std::uint64_t> bits;
  for (auto mode : {LoadMode::exchange, LoadMode::read}) {
    SimulationOptions simulation;
    simulation.ranks = {3};
    simulation.storage = &disk;

    const auto outcome = simulate_job<Loaded>(simulation, [&](SimulatedRank& rank) {
      return load(rank, job_of(Strategy::zero1, mode), core::DType::bf16);
    });

    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& rank : outcome.ranks) bits.insert(rank.bits);
  }
  EXPECT_EQ(bits.size(), 1u);
}

TEST(LoadExchange, MidwayKillEndsInAnErrorNotAHang) {
  constexpr int kRanks = 3;
  SimulatedStorage disk({});
  save_on(disk, 2, Strategy::ddp);
  const auto options = job_of(Strategy::zero1, LoadMode::exchange);
  const auto whole = load_by(kRanks, disk, options);
  ASSERT_EQ(problems_of(whole.report), "");
  const auto begin = whole.ranks[0].begin;
  auto end = whole.ranks[0].end;
  for (const auto& rank : whole.ranks) end = std::min(end, rank.end);
  int in_the_middle = 0;
  for (int victim = 0; victim < kRanks; ++victim) {
    for (int i = 0; i < 60; ++i) {
      SimulatedFault fault;
      fault.rank = {victim};
      fault.at = begin + (end - begin) * i / 60;
      SCOPED_TRACE(fmt::format("rank {} at {} ns", victim, fault.at.count()));

      const auto outcome = load_by(kRanks, disk, options, {fault});

      ASSERT_EQ(violations_of(outcome.report), "");
      ASSERT_LT(outcome.report.virtual_time, 8s) << "a deadline found it out";
      for (int rank = 0; rank < kRanks; ++rank) {
        const auto& result = outcome.report.results[static_cast<std::size_t>(rank)];
        ASSERT_FALSE(result) << rank;
        const bool exchanging = result.error().message.find("while the ranks exchanged") != std::string::npos;
        in_the_middle += exchanging ? 1 : 0;
      }
    }
  }
  EXPECT_GT(in_the_middle, 20);
}

TEST(LoadExchange, HangingRankIsFoundByTheCollectivesDeadline) {
  constexpr int kRanks = 3;
  SimulatedStorage disk({});
  save_on(disk, 2, Strategy::ddp);
  auto options = job_of(Strategy::ddp, LoadMode::exchange);
  options.session.step_deadline = 2s;
  SimulatedFault hang;
  hang.kind = SimulatedFault::Kind::hang;
  hang.rank = {1};
  hang.at = load_by(kRanks, disk, options).ranks[0].begin;

  const auto outcome = load_by(kRanks, disk, options, {hang});

  ASSERT_EQ(violations_of(outcome.report), "");
  for (const auto& result : outcome.report.results) EXPECT_FALSE(result);
  EXPECT_LT(outcome.report.virtual_time, 30s);
}

TEST(LoadExchange, RanksAskedForDifferentThingsAreRefusedWithoutWaiting) {
  SimulatedStorage disk({});
  save_on(disk, 2, Strategy::ddp);
  SimulationOptions simulation;
  simulation.ranks = {3};
  simulation.storage = &disk;

  const auto outcome = simulate_job<Loaded>(simulation, [&](SimulatedRank& rank) {
    const bool optimizer = rank.rank().value != 2;
    return load(rank, job_of(Strategy::ddp, LoadMode::exchange), core::DType::f32, optimizer);
  });

  ASSERT_EQ(violations_of(outcome.report), "");
  for (const auto& result : outcome.report.results) {
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().message, HasSubstr("rank 2: this rank would load in another way than rank 0"));
  }
}

TEST(LoadExchange, RanksWithDifferentLoadingOptionsFormNoJob) {
  SimulatedStorage disk({});
  SimulationOptions simulation;
  simulation.ranks = {2};
  simulation.storage = &disk;

  const auto outcome = simulate_job<Loaded>(simulation, [&](SimulatedRank& rank) {
    return load(rank, job_of(Strategy::ddp, rank.rank().value == 0 ? LoadMode::exchange : LoadMode::read));
  });

  for (const auto& result : outcome.report.results) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, core::Errc::mismatch);
    EXPECT_THAT(result.error().message, HasSubstr("loads"));
  }
}

}  // namespace
}  // namespace troupe::actors
