// What an actor throws in real ranks, with CAF, sockets and files: two of them in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "actors/shell/process_rank.hpp"
#include "actors/simulation/tiny_trainer.hpp"
#include "core/errors.hpp"
#include "tests/simulation/altered_world.hpp"
#include "tests/simulation/supervision_job.hpp"
#include "tests/support/scratch_folder.hpp"
#include "tests/support/unused_port.hpp"

namespace troupe::actors {
namespace {

using messages::Role;
using testing::HasSubstr;
using Seconds = std::chrono::duration<double>;

struct RealRanks {
  std::vector<core::Result<TinyTrainerResult>> results;
  bool has_thrown = false;
  std::string actor;
  std::chrono::steady_clock::time_point thrown_at;
  double seconds = 0;  ///< from then until all ranks have ended
};

/// Trains on two ranks, which save every step, with a thread each.
RealRanks run(const InjectionPoint& point) {
  RealRanks ranks;
  const tests::ScratchFolder folder;
  const auto port = tests::unused_port();
  ranks.results.resize(2);
  int seen = 0;
  const auto train = [&](int rank) -> core::Result<TinyTrainerResult> {
    ProcessWorldOptions options;
    options.checkpoint_directory = folder.path("checkpoints");
    options.local_checkpoint_directory = folder.path("local");
    options.log = [](std::string_view) {};
    options.environment = [&] {
      JobEnvironment environment;
      environment.rank = {rank};
      environment.local_rank = rank;
      environment.world = {2};
      environment.local_world = 2;
      environment.job = fmt::format("supervised-{}", port);
      environment.control_port = port;
      return environment;
    };
    auto world = TRY(ProcessRank::create(std::move(options)));
    AlteredWorld altered(*world);
    if (rank == point.rank.value && point.role) {
      altered.alter_machine = [&](const messages::Address& address, std::unique_ptr<Machine>& machine) {
        if (address.role != *point.role || address.index != point.index) return;
        ranks.actor = messages::to_string(address);
        machine = std::make_unique<ThrowingMachine>(std::move(machine), point.at, point.what,
                                                    &ranks.has_thrown, &ranks.thrown_at);
      };
    } else if (rank == point.rank.value) {
      altered.before_work = [&](const messages::Address& from, const Work& work) {
        if (work_name(work) != point.work || ++seen != point.at) return;
        ranks.has_thrown = true;
        ranks.actor = messages::to_string(from);
        ranks.thrown_at = std::chrono::steady_clock::now();
        throw_it(point.what);
      };
    }
    TinyTrainerOptions trainer;
    trainer.steps = 20;
    trainer.save_every = 1;
    trainer.local_every = 1;
    trainer.session.training.strategy = core::Strategy::zero1;
    trainer.session.training.lanes = 2;
    trainer.session.training.bucket_elements = 40;
    return train_tiny(altered, trainer, [](auto) {});
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] { ranks.results[static_cast<std::size_t>(rank)] = train(rank); });
  }
  ranks.seconds = Seconds(std::chrono::steady_clock::now() - ranks.thrown_at).count();
  return ranks;
}

class SupervisionOfRealRanks : public testing::TestWithParam<InjectionPoint> {};

TEST_P(SupervisionOfRealRanks, NamesTheActorOnAllRanks) {
  const auto ranks = run(GetParam());

  ASSERT_TRUE(ranks.has_thrown);
  RecordProperty("seconds", std::to_string(ranks.seconds));
  for (const auto& result : ranks.results) {
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().message, HasSubstr(ranks.actor + " failed while it handled "));
    EXPECT_THAT(result.error().message, HasSubstr(words_of(GetParam().what)));
  }
}

std::vector<InjectionPoint> deadly() {
  const core::Rank first{0}, second{1};
  return {
      {.name = "Coordinator", .rank = first, .role = Role::coordinator, .at = 9},
      {.name = "Supervisor", .rank = second, .role = Role::rank_supervisor, .at = 9},
      {.name = "Conductor", .rank = second, .role = Role::conductor, .at = 9, .what = Thrown::out_of_range},
      {.name = "Bucket",
       .rank = second,
       .role = Role::gradient_bucket,
       .at = 5,
       .what = Thrown::no_exception},
      {.name = "Shard", .rank = second, .role = Role::parameter_shard, .at = 5},
      {.name = "SaveCoordinator", .rank = first, .role = Role::checkpoint_coordinator, .at = 5},
      {.name = "Launch", .rank = second, .work = "LaunchCollective", .at = 5},
      {.name = "Commit", .rank = first, .work = "CommitSave", .at = 2},
  };
}

std::string name_of_real_point(const testing::TestParamInfo<InjectionPoint>& point) {
  return point.param.name;
}

INSTANTIATE_TEST_SUITE_P(Points, SupervisionOfRealRanks, testing::ValuesIn(deadly()), name_of_real_point);

class WritersOfRealRanks : public testing::TestWithParam<InjectionPoint> {};

TEST_P(WritersOfRealRanks, AreReplacedAndLoseASave) {
  const auto ranks = run(GetParam());

  ASSERT_TRUE(ranks.has_thrown);
  for (const auto& result : ranks.results) ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(ranks.results[0]->state_hash, ranks.results[1]->state_hash);
  EXPECT_TRUE(ranks.results[0]->saves.back().committed);
  EXPECT_TRUE(ranks.results[0]->local_saves.back().committed);
}

std::vector<InjectionPoint> replaced() {
  const core::Rank second{1};
  return {
      {.name = "CheckpointWriter", .rank = second, .role = Role::checkpoint_writer, .at = 6},
      {.name = "LocalWriter", .rank = second, .role = Role::local_writer, .at = 6},
      {.name = "StageChunk", .rank = second, .work = "StageChunk", .at = 3, .what = Thrown::out_of_range},
  };
}

INSTANTIATE_TEST_SUITE_P(Points, WritersOfRealRanks, testing::ValuesIn(replaced()), name_of_real_point);

}  // namespace
}  // namespace troupe::actors
