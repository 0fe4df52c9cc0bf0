// Many epochs of two real ranks in one process, which is as it was before each.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <filesystem>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "actors/session/session.hpp"
#include "actors/shell/process_rank.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"
#include "tests/support/child.hpp"
#include "tests/support/command.hpp"
#include "tests/support/scratch_folder.hpp"
#include "tests/support/unused_port.hpp"

namespace troupe::actors {
namespace {

/// More of them take TROUPE_EPOCHS=1000.
int epoch_count() {
  return core::parse_number<int>(process_variables()("TROUPE_EPOCHS").value_or("60"), {20, 1000}).value();
}

std::size_t entries_of(const char* folder) {
  std::error_code ignored;
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder, ignored),
                                                std::filesystem::directory_iterator()));
}

/// A thread that was joined is listed for a moment yet.
std::size_t threads_of_process() {
  auto fewest = entries_of("/proc/self/task");
  for (int i = 0; i < 500; ++i) {
    std::this_thread::yield();
    fewest = std::min(fewest, entries_of("/proc/self/task"));
  }
  return fewest;
}

struct Resources {
  std::size_t threads = threads_of_process();
  std::size_t descriptors = entries_of("/proc/self/fd");
  std::size_t heap_bytes = ::mallinfo2().uordblks;
  std::size_t segments = 0;
};

core::Result<core::Step> step(Session& session) {
  TRY(session.begin_step(0.125));
  for (const auto lane : session.lanes()) {
    TRY(session.begin_lane(lane));
    for (const core::ParameterIndex index : {core::ParameterIndex{1}, core::ParameterIndex{0}}) {
      TRY(session.before_use(index));
      for (float& value : TRY(session.gradient(index))) value += static_cast<float>(lane.value + 1);
      TRY(session.gradient_ready(index));
    }
    TRY(session.end_lane(1));
  }
  return TRY(session.finish_step()).step;
}

/// What a trainer does in an epoch: the second rank is lost after three steps, without a word.
core::Result<void> train(ProcessRank& world) {
  SessionOptions options;
  options.training.lanes = 2;
  options.training.strategy = core::Strategy::zero1;
  auto session = TRY(Session::join(world, options, {{"w", {640}}, {"v", {320}}}));
  const auto restored = TRY(session->restore());
  for (int i = 0; i < 10'000; ++i) {
    const auto done = TRY(step(*session));
    if (i == 0) {
      TRY(session->save());
      TRY(session->wait_saves());
      const auto next = restored ? restored->step : core::Step{0};
      if (done != next) return core::fail(core::Errc::internal, "step {}, not {}", done.value, next.value);
    }
    if (i == 2 && world.rank().value == 1) return core::fail(core::Errc::peer_lost, "lost on purpose");
  }
  return core::fail(core::Errc::internal, "the loss of the other rank was not noticed");
}

TEST(Epochs, LeaveNothingBehindInTheProcessThatOutlivesThem) {
  const tests::ScratchFolder folder;
  const int epochs = epoch_count();
  auto port = tests::unused_port();  // of the epoch
  const auto job = fmt::format("epochs-{}", port);
  const auto place = [&](int rank, std::uint64_t epoch) {
    JobEnvironment environment;
    environment.rank = {rank};
    environment.local_rank = rank;
    environment.world = {2};
    environment.local_world = 2;
    environment.job = job;
    environment.epoch = {epoch};
    environment.control_port = port;
    return environment;
  };
  std::vector<Resources> seen;
  std::barrier together(2);
  const auto live = [&](int rank) -> core::Result<void> {
    ProcessWorldOptions options;
    options.checkpoint_directory = folder.path("checkpoints");
    options.log = [](std::string_view) {};
    options.environment = [&, rank] { return core::Result<JobEnvironment>(place(rank, 1)); };
    options.next_environment = [&, rank](const JobEnvironment& over) {
      return core::Result<JobEnvironment>(place(rank, over.epoch.value + 1));
    };
    const auto world = TRY(ProcessRank::create(std::move(options)));
    core::Result<void> result;
    for (int i = 0; i < epochs; ++i) {
      const auto end = train(*world);
      if (!end && result) result = end.error().code == core::Errc::peer_lost ? result : end;
      together.arrive_and_wait();
      if (rank == 0) {
        if (i == epochs / 3 || i == epochs - 1) {
          seen.emplace_back();
          seen.back().segments = tests::segments_with(job).size();
        }
        port = tests::unused_port();
      }
      together.arrive_and_wait();
      if (i + 1 < epochs && result) result = world->form_anew(end.error());
    }
    return result;
  };
  std::array<core::Result<void>, 2> ends;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] { ends[static_cast<std::size_t>(rank)] = live(rank); });
  }
  for (const auto& end : ends) EXPECT_TRUE(end.has_value()) << end.error().message;

  ASSERT_EQ(seen.size(), 2u);
  const auto& [early, last] = std::pair(seen[0], seen[1]);
  RecordProperty("heap_growth",
                 std::to_string(static_cast<std::int64_t>(last.heap_bytes - early.heap_bytes)));
  EXPECT_EQ(last.threads, early.threads);
  EXPECT_EQ(last.descriptors, early.descriptors);
  EXPECT_EQ(last.segments, early.segments);
  if (tests::is_sanitized()) return;
  EXPECT_LE(last.heap_bytes, early.heap_bytes + (std::size_t{256} << 10));
}

}  // namespace
}  // namespace troupe::actors
