// Whatever a role or its work throws is a decision of its parent: a table of points at which something is
// thrown.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "actors/simulation/simulation.hpp"
#include "tests/simulation/altered_world.hpp"
#include "tests/simulation/checkpoint_job.hpp"
#include "tests/simulation/supervision_job.hpp"

namespace troupe::actors {
namespace {

using messages::Role;
using testing::HasSubstr;

constexpr int kRanks = 4;
constexpr std::int64_t kTrainedSteps = 6;

TinyTrainerOptions watched_job() {
  auto options = saving_job(core::Strategy::zero1, kTrainedSteps);
  options.local_every = 1;
  options.session.local.deadline = std::chrono::seconds(30);
  options.session.local.staging_bytes = 256;
  options.session.local.chunk_bytes = 64;
  options.session.local.cliques = {{{0}, {1}}, {{2}, {3}}};
  return options;
}

struct Injected {
  JobOutcome<TinyTrainerResult> outcome;
  bool has_thrown = false;
  std::string actor;  ///< that threw
  std::chrono::nanoseconds thrown_at{};
  std::vector<std::chrono::nanoseconds> ended_at;
};

Injected inject(const InjectionPoint& point, std::uint64_t seed) {
  Injected injected;
  injected.ended_at.resize(kRanks);
  SimulatedStorage disk({});
  std::vector<std::unique_ptr<SimulatedStorage>> nodes;
  SimulationOptions simulation = machines_of(disk, kRanks, seed);
  for (int node = 0; node < kRanks; ++node) {
    nodes.push_back(std::make_unique<SimulatedStorage>(SimulatedStorageOptions{}));
    simulation.local_storages.push_back(nodes.back().get());
  }
  simulation.time_limit = std::chrono::minutes(30);
  int seen = 0;
  injected.outcome = simulate_job<TinyTrainerResult>(
      simulation, [&](SimulatedRank& rank) -> core::Result<TinyTrainerResult> {
        AlteredWorld world(rank);
        if (rank.rank() == point.rank && point.role) {
          world.alter_machine = [&](const messages::Address& address, std::unique_ptr<Machine>& machine) {
            if (address.role != *point.role || address.index != point.index) return;
            injected.actor = messages::to_string(address);
            machine = std::make_unique<ThrowingMachine>(std::move(machine), point.at, point.what,
                                                        &injected.has_thrown);
          };
        } else if (rank.rank() == point.rank) {
          world.before_work = [&](const messages::Address& from, const Work& work) {
            if (work_name(work) != point.work || ++seen != point.at) return;
            injected.has_thrown = true;
            injected.actor = messages::to_string(from);
            throw_it(point.what);
          };
        }
        auto trained = train_tiny(world, watched_job(), [&](auto duration) { rank.compute(duration); });
        injected.ended_at[static_cast<std::size_t>(rank.rank().value)] = rank.device().now();
        return trained;
      });
  return injected;
}

/// The saves of a rank that did not count, and why.
std::string failed_saves(const TinyTrainerResult& rank) {
  std::string text;
  for (const auto* saves : {&rank.saves, &rank.local_saves}) {
    for (const auto& save : *saves) {
      if (!save.committed) text += save.committed.error().message + "\n";
    }
  }
  return text;
}

class Supervision : public testing::TestWithParam<InjectionPoint> {};

/// Either the actor is replaced, and all that is lost is a save that names it, or all ranks are told its
/// name.
TEST_P(Supervision, EndsWhatAnActorThrowsByItsParentsDecision) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const auto injected = inject(GetParam(), seed);
    const auto& report = injected.outcome.report;

    ASSERT_EQ(violations_of(report), "") << "seed " << seed;
    ASSERT_TRUE(injected.has_thrown) << "the point was not reached";
    ASSERT_LT(report.virtual_time, std::chrono::seconds(2)) << "it was found out by a deadline";
    const auto what = words_of(GetParam().what);
    const bool goes_on = report.results[0].has_value();
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto& result = report.results[static_cast<std::size_t>(rank)];
      ASSERT_EQ(result.has_value(), goes_on) << (result ? "" : result.error().message);
      if (!goes_on) {
        EXPECT_THAT(result.error().message, HasSubstr(injected.actor + " failed while it handled "));
        EXPECT_THAT(result.error().message, HasSubstr(what));
        continue;
      }
      const auto& trained = injected.outcome.ranks[static_cast<std::size_t>(rank)];
      EXPECT_EQ(trained.state_hash, undisturbed_hash(kTrainedSteps));
    }
    if (!goes_on) continue;
    const auto& first = injected.outcome.ranks[0];
    EXPECT_TRUE(first.saves.back().committed) << first.saves.back().committed.error().message;
    EXPECT_TRUE(first.local_saves.back().committed) << first.local_saves.back().committed.error().message;
    if (const auto failed = failed_saves(first); !failed.empty()) {
      EXPECT_THAT(failed, HasSubstr(injected.actor + " failed while it handled "));
    }
  }
}

std::vector<InjectionPoint> points() {
  std::vector<InjectionPoint> points;
  int number = 0;
  const auto what = [&] { return static_cast<Thrown>(number++ % 3); };
  const auto role = [&](core::Rank rank, Role of, std::vector<int> messages) {
    for (const int at : messages) {
      points.push_back({.name = fmt::format("{}OfRank{}AtMessage{}", messages::name_of(of), rank.value, at),
                        .rank = rank,
                        .role = of,
                        .at = at,
                        .what = what()});
    }
  };
  for (const auto of : {Role::rank_supervisor, Role::conductor, Role::gradient_bucket, Role::parameter_shard})
    role({1}, of, {1, 2, 7});
  role({0}, Role::rank_supervisor, {1, 9});
  role({0}, Role::coordinator, {1, 3, 4, 9});
  role({0}, Role::checkpoint_coordinator, {1, 4, 7});
  role({0}, Role::replica_coordinator, {1, 4, 7});
  role({0}, Role::checkpoint_writer, {1, 3, 5, 8, 13, 21, 34});
  for (const auto of : {Role::checkpoint_writer, Role::local_writer})
    role({1}, of, {1, 2, 3, 4, 5, 6, 8, 9, 12, 15, 19, 25, 31, 40});
  role({1}, Role::replica_keeper, {1, 2, 3, 4, 5, 6, 7, 9, 12, 15, 21});
  const auto work = [&](core::Rank rank, const char* of, std::vector<int> places) {
    for (const int at : places) {
      points.push_back({.name = fmt::format("{}OfRank{}Number{}", of, rank.value, at),
                        .rank = rank,
                        .work = of,
                        .at = at,
                        .what = what()});
    }
  };
  for (const auto* of : {"PrepareBucket", "LaunchCollective", "PrepareVerdict", "StepShard"})
    work({1}, of, {1, 3});
  for (const auto* of : {"OpenSave", "StageChunk", "WriteChunk", "FinishFiles", "CloseSave"})
    work({1}, of, {1, 2, 4});
  for (const auto* of : {"MakeSaveDirectory", "CommitSave"}) work({0}, of, {1, 2});
  for (const auto* of : {"MakeCopyDirectory", "SealCopy", "OpenExchange", "ReadRound", "ShareRound",
                         "WriteRound", "CloseExchange", "TidyCopies"}) {
    work({1}, of, {1, 2});
  }
  return points;
}

std::string name_of_point(const testing::TestParamInfo<InjectionPoint>& point) {
  std::string name;
  for (const char c : point.param.name) name += c == '_' ? 'X' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Points, Supervision, testing::ValuesIn(points()), name_of_point);

/// A disk on which making a file throws, once.
class ThrowingStorage final : public Storage {
 public:
  explicit ThrowingStorage(Storage& storage) : storage_(storage) {}

  core::Result<std::unique_ptr<WritableFile>> create(std::string_view path) override {
    if (++made == at) throw_it(Thrown::bad_alloc);
    return storage_.create(path);
  }
  core::Result<std::vector<std::byte>> read(std::string_view path, std::uint64_t offset,
                                            std::size_t limit) override {
    return storage_.read(path, offset, limit);
  }
  core::Result<std::uint64_t> size(std::string_view path) override { return storage_.size(path); }
  core::Result<void> make_directory(std::string_view path) override { return storage_.make_directory(path); }
  core::Result<std::vector<std::string>> list(std::string_view path) override { return storage_.list(path); }
  core::Result<void> rename(std::string_view from, std::string_view to) override {
    return storage_.rename(from, to);
  }
  core::Result<void> remove(std::string_view path) override { return storage_.remove(path); }
  core::Result<void> sync_directory(std::string_view path) override { return storage_.sync_directory(path); }

  int made = 0;
  int at = 2;

 private:
  Storage& storage_;
};

TEST(SupervisedWork, OfTheFileWorkerIsTheAskingActors) {
  SimulatedStorage disk({});
  auto simulation = machines_of(disk, 2, 1);
  const auto options = saving_job(core::Strategy::zero1, kTrainedSteps);
  ThrowingStorage storage(disk);

  const auto outcome = simulate_job<TinyTrainerResult>(simulation, [&](SimulatedRank& rank) {
    AlteredWorld world(rank);
    if (rank.rank().value == 1) world.other_storage = &storage;
    return train_tiny(world, options, [&](auto duration) { rank.compute(duration); });
  });

  EXPECT_EQ(complaints_of(outcome, kTrainedSteps), "");
  EXPECT_GT(storage.made, storage.at);
  EXPECT_THAT(failed_saves(outcome.ranks[0]), HasSubstr("checkpoint_writer @ rank 1 failed while it "));
  EXPECT_TRUE(outcome.ranks[0].saves.back().committed);
}

/// Every successor throws, too.
class HopelessMachine final : public Machine {
 public:
  explicit HopelessMachine(std::unique_ptr<Machine> machine) : machine_(std::move(machine)) {}

  void start(Outbox& outbox) override { machine_->start(outbox); }
  void receive(const messages::Envelope&, Outbox&) override { throw_it(Thrown::bad_alloc); }
  std::unique_ptr<Machine> successor(const messages::Failure& why, const messages::Envelope* heard,
                                     Outbox& outbox) const override {
    return std::make_unique<HopelessMachine>(machine_->successor(why, heard, outbox));
  }
  std::string_view state() const override { return machine_->state(); }
  std::string waiting_for() const override { return machine_->waiting_for(); }

 private:
  std::unique_ptr<Machine> machine_;
};

TEST(SupervisedWork, OfARepeatedlyFailingActorFailsTheRank) {
  SimulatedStorage disk({});
  const auto options = saving_job(core::Strategy::zero1, kTrainedSteps);

  const auto outcome = simulate_job<TinyTrainerResult>(machines_of(disk, 2, 1), [&](SimulatedRank& rank) {
    AlteredWorld world(rank);
    world.alter_machine = [&](const messages::Address& address, std::unique_ptr<Machine>& machine) {
      if (address.rank.value == 1 && address.role == Role::checkpoint_writer)
        machine = std::make_unique<HopelessMachine>(std::move(machine));
    };
    return train_tiny(world, options, [&](auto duration) { rank.compute(duration); });
  });

  EXPECT_EQ(violations_of(outcome.report), "");
  EXPECT_LT(outcome.report.virtual_time, std::chrono::seconds(2));
  for (const auto& result : outcome.report.results) {
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().message, HasSubstr("checkpoint_writer @ rank 1 failed while it handled"));
  }
}

/// Its rank's process ends, which the others see.
TEST(SupervisedWork, OfASupervisorWithoutAFenceEndsTheProcess) {
  const auto outcome = simulate_job<TinyTrainerResult>({.ranks = {3}}, [&](SimulatedRank& rank) {
    AlteredWorld world(rank);
    world.alter_machine = [&](const messages::Address& address, std::unique_ptr<Machine>& machine) {
      if (address.rank.value == 2 && address.role == Role::rank_supervisor)
        machine = std::make_unique<HopelessMachine>(std::move(machine));
    };
    world.before_work = [](const messages::Address& from, const Work& work) {
      if (from.rank.value == 2 && work_name(work) == "AbortCollectives") throw_it(Thrown::bad_alloc);
    };
    return train_tiny(world, tiny_job(core::Strategy::ddp), [&](auto duration) { rank.compute(duration); });
  });

  EXPECT_EQ(violations_of(outcome.report), "");
  EXPECT_LT(outcome.report.virtual_time, std::chrono::seconds(2));
  for (int rank = 0; rank < 2; ++rank) {
    const auto& result = outcome.report.results[static_cast<std::size_t>(rank)];
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().message, HasSubstr("rank 2"));
  }
}

/// Says nothing of the parameters after the last step.
class SilentShard final : public Machine {
 public:
  SilentShard(std::unique_ptr<Machine> machine, core::Step last)
      : machine_(std::move(machine)), last_(last) {}

  void receive(const messages::Envelope& envelope, Outbox& outbox) override {
    const auto* decided = std::get_if<messages::StepDecided>(&envelope.body);
    if (decided == nullptr || decided->step != last_) machine_->receive(envelope, outbox);
  }
  std::string_view state() const override { return machine_->state(); }
  std::string waiting_for() const override { return machine_->waiting_for(); }

 private:
  std::unique_ptr<Machine> machine_;
  core::Step last_;
};

TEST(TrainersDeadline, FailsTheSessionEverywhereAndAnswersEveryCall) {
  using namespace std::chrono_literals;
  auto options = tiny_job(core::Strategy::ddp);
  options.session.step_deadline = 2s;
  std::string first, second;

  const auto outcome = simulate_job<bool>({.ranks = {3}}, [&](SimulatedRank& rank) -> core::Result<bool> {
    AlteredWorld world(rank);
    const bool is_silent = rank.rank().value == 1;
    world.alter_machine = [&](const messages::Address& address, std::unique_ptr<Machine>& machine) {
      if (is_silent && address.role == Role::parameter_shard)
        machine = std::make_unique<SilentShard>(std::move(machine), core::Step{0});
    };
    auto session = TRY(Session::join(world, options.session, tiny_parameters(options)));
    TRY(session->begin_step(0.1));
    for (const auto lane : session->lanes()) {
      TRY(session->begin_lane(lane));
      for (std::uint32_t i = 0; i < session->parameters().size(); ++i) {
        TRY(session->gradient({i}))[0] = 1;
        TRY(session->gradient_ready({i}));
      }
      TRY(session->end_lane(0));
    }
    TRY(session->finish_step());
    if (!is_silent) rank.compute(1s);  // so that it is this rank's deadline that passes first
    const auto left = session->leave();
    if (is_silent) {
      first = left ? "it left" : left.error().message;
      const auto next = session->begin_step(0.1);
      second = next ? "it began" : next.error().message;
    }
    TRY(core::Result<void>(left));
    return true;
  });

  EXPECT_EQ(violations_of(outcome.report), "");
  EXPECT_THAT(first, testing::StartsWith("rank 1: the trainer waited 6 s for the parameters of bucket"));
  EXPECT_EQ(second, first);
  EXPECT_LT(outcome.report.virtual_time, 6s + 500ms) << "the others waited for a deadline of their own";
  for (const int other : {0, 2}) {
    const auto& result = outcome.report.results[static_cast<std::size_t>(other)];
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().message, first);
  }
}

}  // namespace
}  // namespace troupe::actors
