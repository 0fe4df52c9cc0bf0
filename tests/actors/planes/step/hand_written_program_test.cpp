#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/planes/step/data_plane.hpp"
#include "core/errors.hpp"
#include "core/program/fold.hpp"
#include "gpu/collective/simulated/fabric.hpp"
#include "gpu/simulated/simulated_device.hpp"
#include "tests/actors/planes/step/groups_of_rank.hpp"
#include "tests/gpu/manual_timeline.hpp"

// No planner has made these programs, and none would: what is done is what the entries say.

namespace troupe::actors {
namespace {

using core::Action;
using core::Mark;
using core::Place;
using core::Queue;
using testing::ElementsAre;

constexpr std::int64_t kHandElements = 128;
using EventLog = std::vector<std::string>;

/// Events by number, in the order in which they were first recorded or waited for.
struct Seen {
  EventLog log;
  std::map<const gpu::EventState*, int> events;

  int number(const gpu::EventState* event) {
    return events.try_emplace(event, static_cast<int>(events.size())).first->second;
  }
};

/// A stream that writes down what it is told.
class WatchedStream final : public gpu::StreamQueue {
 public:
  WatchedStream(gpu::Stream stream, Seen& seen) : stream_(std::move(stream)), seen_(seen) {}

  std::string_view name() const override { return stream_->name(); }
  void enqueue(std::string_view label, gpu::TaskCost cost, std::function<void()> body) override {
    seen_.log.push_back(fmt::format("{}: {}", name(), label));
    stream_->enqueue(label, cost, std::move(body));
  }
  void enqueue_async(std::string_view label, std::function<void(gpu::Completion)> start) override {
    seen_.log.push_back(fmt::format("{}: {}", name(), label));
    stream_->enqueue_async(label, std::move(start));
  }
  void record(gpu::EventView event) override {
    seen_.log.push_back(fmt::format("{} records {}", name(), seen_.number(event)));
    stream_->record(event);
  }
  void wait(gpu::EventView event) override {
    seen_.log.push_back(fmt::format("{} waits for {}", name(), seen_.number(event)));
    stream_->wait(event);
  }
  void notify(std::function<void()> callback) override { stream_->notify(std::move(callback)); }
  core::Result<void> synchronize(std::chrono::nanoseconds deadline) override {
    return stream_->synchronize(deadline);
  }

 private:
  gpu::Stream stream_;
  Seen& seen_;
};

class WatchedDevice final : public gpu::Device {
 public:
  WatchedDevice(gpu::Timeline& timeline, Seen& seen) : device_(timeline, {}), seen_(seen) {}

  gpu::DeviceKind kind() const override { return device_.kind(); }
  bool is_host_memory() const override { return true; }
  std::string description() const override { return device_.description(); }
  core::Result<gpu::Buffer> allocate(std::size_t bytes) override { return device_.allocate(bytes); }
  core::Result<gpu::Buffer> allocate_staging(std::size_t bytes) override { return device_.allocate(bytes); }
  core::Result<gpu::Stream> create_stream(gpu::StreamOptions options) override {
    return std::make_unique<WatchedStream>(TRY(device_.create_stream(std::move(options))), seen_);
  }
  core::Result<gpu::Event> create_event() override { return device_.create_event(); }
  gpu::DeviceTime now() const override { return device_.now(); }
  void observe(gpu::TaskObserver observer) override { device_.observe(std::move(observer)); }

 private:
  gpu::SimulatedDevice device_;
  Seen& seen_;
};

TrainingPlan plan_of_two() {
  core::TrainingOptions options;
  options.strategy = core::Strategy::ddp;
  options.numerics = core::Numerics::fast;
  options.average = false;
  return plan_training({{"w", {kHandElements}}}, options, {2}).value();
}

/// Without entries: what it is about.
core::Program empty_program(const TrainingPlan& plan, int rank) {
  core::Program program;
  program.numerics = core::Numerics::fast;
  program.placements = plan.inputs.placements;
  program.domains = plan.inputs.domains;
  program.classes = plan.inputs.classes;
  program.units = core::fold(plan.inputs.units.items());
  program.coordinates = {rank};
  program.lanes = 2;
  program.rounds = 1;
  program.credits = {0, 0};
  program.verdict_elements = plan.inputs.verdict_elements;
  return program;
}

void add(core::Program& program, core::Recipe recipe) {
  core::ProgramEntry entry;
  entry.operation = core::CollectiveKind::all_reduce;
  entry.group = core::GroupKind::dp_cp;
  entry.tensor = {core::TensorKind::gradients, 0, 0};
  entry.from = {core::Placement::partial};
  entry.to = {core::Placement::replicated};
  entry.elements = kHandElements;
  entry.counts = core::Counts::even(kHandElements, 2);
  entry.ready = {core::Phase::backward, 0};
  entry.needed = {core::Phase::finish, 0};
  entry.first = entry.later = static_cast<int>(program.recipes.size());
  program.recipes.push_back(std::move(recipe));
  program.last_round.runs.push_back({.entries = {entry}, .times = 1});
}

/// Two ranks that execute a program; rank r's gradients are r + 1.
struct Job {
  template <class Write>
  explicit Job(Write write) {
    for (int rank = 0; rank < 2; ++rank) {
      devices.push_back(std::make_unique<WatchedDevice>(timeline, seen[rank]));
      DataPlane::Options options;
      options.rank = {rank};
      options.post = [](const messages::Envelope&) {};
      options.program = empty_program(plan, rank);
      write(*options.program);
      planes.push_back(DataPlane::create(*devices.back(), plan, std::move(options)).value());
      EXPECT_TRUE(planes.back()->set_groups(groups_of_rank(*backend, plan, *planes.back())));
      std::ranges::fill(planes.back()->tensors().gradient({0}, {rank}).as<float>(),
                        static_cast<float>(rank + 1));
    }
  }

  void run() {
    for (int rank = 0; rank < 2; ++rank) {
      auto& plane = *planes[static_cast<std::size_t>(rank)];
      plane.perform(PrepareBucket{{0}, {0}, {rank}, true});
      seen[rank].log.clear();
      for (const auto entry : plane.program().launches().indices())
        plane.perform(LaunchCollective{{0}, entry, core::place_of(entry)});
    }
    timeline.run_until_idle();
  }

  float found(int rank) {
    return planes[static_cast<std::size_t>(rank)]->tensors().reduced_gradient({0}).memory.as<float>()[5];
  }

  TrainingPlan plan = plan_of_two();
  gpu::ManualTimeline timeline;
  gpu::SimulatedFabric fabric{timeline};
  std::unique_ptr<gpu::CollectiveBackend> backend = fabric.backend();
  Seen seen[2];
  std::vector<std::unique_ptr<WatchedDevice>> devices;
  std::vector<std::unique_ptr<DataPlane>> planes;
};

core::RecipeStep on_sums(Action action, Mark mark = Mark::prepared) {
  return {.action = action, .queue = Queue::sums, .mark = mark};
}

/// What all have is added to what each has.
core::Recipe total_beside_own() {
  return {.before = {
              {.action = Action::wait, .mark = Mark::prepared},
              {.action = Action::reserve},
              {.action = Action::cut_sums},
              {.action = Action::post, .from = Place::sums, .to = Place::arrived},
              {.action = Action::record, .mark = Mark::exchanged},
              on_sums(Action::wait, Mark::exchanged),
              {.action = Action::accumulate, .queue = Queue::sums, .from = Place::arrived, .to = Place::sums},
              on_sums(Action::record, Mark::staged),
              on_sums(Action::record, Mark::reduced)}};
}

core::Recipe total(Mark after) {
  return {.before = {{.action = Action::wait, .mark = after},
                     {.action = Action::post, .from = Place::sums, .to = Place::sums},
                     {.action = Action::record, .mark = Mark::reduced}}};
}

TEST(HandWrittenProgram, IsExecutedAsItSaysAndInThatOrder) {
  Job job([](core::Program& program) {
    add(program, total_beside_own());
    add(program, total(Mark::reduced));
  });

  job.run();

  // 1 + 3 and 2 + 3, and then their sum: no strategy does this.
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(job.found(rank), 9.0F) << rank;
    const auto& log = job.seen[rank].log;
    // 0 is what "accumulate" has recorded: the rank's own sums.
    EXPECT_THAT(log, ElementsAre("communication waits for 0", "communication waits for 1",
                                 "communication: all_reduce", "communication records 2", "update waits for 2",
                                 "update: accumulate", "update records 1", "update records 3",
                                 "communication waits for 3", "communication: all_reduce",
                                 "communication records 3"));
  }
}

TEST(HandWrittenProgram, TakesNoWaitThatItsEntriesDoNotName) {
  Job job([](core::Program& program) {
    auto hasty = total_beside_own();
    hasty.before.erase(hasty.before.begin());
    add(program, hasty);
  });

  job.run();

  EXPECT_EQ(job.seen[0].log.front(), "communication waits for 1") << "its staging credit";
  EXPECT_EQ(std::ranges::count(job.seen[0].log, "communication waits for 0"), 0);
}

TEST(HandWrittenProgram, TakesStagingCreditsInTurnAndAwaitsTheirReturn) {
  Job job([](core::Program& program) {
    for (int i = 0; i < 3; ++i) add(program, total_beside_own());
  });

  job.run();

  // There are two credits, so the third entry takes the first one's again: of event 1, which it recorded.
  EventLog of_credits;
  for (const auto& line : job.seen[0].log) {
    if (line == "communication waits for 1" || line == "update records 1" ||
        line == "communication waits for 4" || line == "update records 4")
      of_credits.push_back(line);
  }
  EXPECT_THAT(of_credits,
              ElementsAre("communication waits for 1", "update records 1", "communication waits for 4",
                          "update records 4", "communication waits for 1", "update records 1"));
  // 1, 2 -> 4, 5 -> 13, 14 -> 40, 41.
  EXPECT_EQ(job.found(0), 40.0F);
  EXPECT_EQ(job.found(1), 41.0F);
}

/// Its chunks, too: nothing asks what kind of entry it is.
TEST(HandWrittenProgram, RepeatsWhatIsDoneForEachChunk) {
  Job job([](core::Program& program) {
    core::Recipe recipe{.before = {{.action = Action::wait, .mark = Mark::prepared}}};
    recipe.each_chunk = {{.action = Action::record, .mark = Mark::exchanged}};
    recipe.after = {on_sums(Action::record, Mark::reduced)};
    add(program, recipe);
    auto& entry = program.last_round.runs.front().entries.front();
    entry.operation = core::CollectiveKind::all_gather;
    entry.chunk = kHandElements / 2 / 4;
  });

  job.run();

  EXPECT_EQ(std::ranges::count(job.seen[0].log, "communication records 1"), 4);
  EXPECT_EQ(job.found(0), 1.0F) << "it posts nothing";
}

/// Nothing is sent to a group that is not the program's.
// Covers finish-1, reduce-7.
TEST(Groups, MissingOrOfOtherMembersAreNamedBeforeSending) {
  const auto refusal = [](const std::function<void(DataPlaneGroups&, gpu::CollectiveBackend&)>& spoil) {
    Job job([](core::Program& program) { add(program, total(Mark::prepared)); });
    gpu::SimulatedFabric other(job.timeline);
    const auto backend = other.backend();
    auto groups = groups_of_rank(*backend, job.plan, *job.planes[0]);
    spoil(groups, *backend);
    const auto taken = job.planes[0]->set_groups(std::move(groups));
    return taken ? "" : taken.error().message;
  };
  const core::Communicator reductions{core::GroupKind::dp_cp, 0};

  EXPECT_EQ(refusal([](auto&, auto&) {}), "");
  EXPECT_EQ(refusal([&](auto& groups, auto&) { groups.of.erase(reductions); }),
            "all_reduce of bucket 0 needs the group dp_cp on stream 0, which was not made");
  EXPECT_EQ(
      refusal([&](auto& groups, auto& backend) {
        gpu::GroupOptions alone{.job = "job", .epoch = {1}, .self = {0}};
        alone.members = {{0}};
        alone.name = "alone";
        groups.owned.push_back(backend.create_group(std::move(alone)).value());
        groups.of[reductions] = groups.owned.back().get();
      }),
      "all_reduce of bucket 0 is planned for 2 members of dp_cp on stream 0, and the group alone has 1");
}

}  // namespace
}  // namespace troupe::actors
