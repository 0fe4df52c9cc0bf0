// What every back-end does when something goes wrong, and in the epoch after.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <future>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/gpu/collective/contract.hpp"
#include "tests/gpu/collective/watchdog.hpp"

namespace troupe::gpu {
namespace {

// The watchdog first: it outlives the company, whose end waits for its streams.
class CollectiveFailure : private Watchdog, public CollectiveContract {};

TEST_P(CollectiveFailure, AbsentMemberEndsTheOthersAtTheirDeadline) {
  if (n == 1) GTEST_SKIP() << "nobody to wait for";
  std::vector<std::shared_ptr<OperationStatus>> statuses;
  for (int i = 0; i + 1 < n; ++i) {
    statuses.push_back(stage.post(i, {.deadline = std::chrono::milliseconds(50)}));
  }
  stage.settle();
  // With TCP the first member that gives up looks lost to the others.
  const bool tells_why = stage.traits().names_missing_members;
  for (const auto& status : statuses) {
    EXPECT_THAT(outcome_of(*status), ::testing::AnyOf("timeout", tells_why ? "timeout" : "peer_lost"));
  }
  const std::string absent = std::to_string(stage.company->options_of(n - 1, "dp", {}).self.value);
  if (tells_why) {
    EXPECT_THAT(message_of(*statuses[0]), ::testing::EndsWith("no sign of rank " + absent));
  }

  const auto later = stage.post(0, {});
  stage.settle();
  EXPECT_EQ(message_of(*later), message_of(*statuses[0])) << "a group that failed once stays so";
}

TEST_P(CollectiveFailure, AbsentMemberEndsTheSetUpAtItsDeadline) {
  if (n == 1) GTEST_SKIP() << "nobody to wait for";
  if (!stage.traits().runs_in_real_time) GTEST_SKIP() << "nobody may wait in simulation";
  auto options = stage.company->options_of(0, "late", core::Epoch{1});
  options.deadline = std::chrono::milliseconds(30);
  const auto group = stage.company->create_group(0, options);

  ASSERT_FALSE(group.has_value());
  EXPECT_EQ(core::to_string(group.error().code), std::string("timeout")) << group.error().message;
}

TEST_P(CollectiveFailure, AbortEndsWhatRunsAndWhatComesLater) {
  const core::Error reason{core::Errc::aborted, "the epoch ended"};
  std::vector<std::shared_ptr<OperationStatus>> statuses;
  for (int i = 0; i + 1 < n; ++i) statuses.push_back(stage.post(i, {}));
  for (const auto& group : stage.groups) group->abort(reason);
  for (int i = 0; i < n; ++i) statuses.push_back(stage.post(i, {}));
  stage.settle();

  EXPECT_EQ(message_of(*statuses[0]), reason.message);
  // The others may learn of the first one's abort before their own.
  for (const auto& status : statuses) {
    EXPECT_THAT(outcome_of(*status), ::testing::AnyOf("aborted", "peer_lost")) << message_of(*status);
  }
}

TEST_P(CollectiveFailure, LeavesAGathersInputInPlace) {
  if (n == 1) GTEST_SKIP() << "nobody to wait for";
  constexpr std::size_t kPart = 5000;
  std::vector<std::vector<float>> values;
  std::vector<std::shared_ptr<OperationStatus>> statuses;
  for (int i = 0; i + 1 < n; ++i) {
    auto& own = values.emplace_back(kPart * static_cast<std::size_t>(n), -1.0F);
    const auto part = std::span(own).subspan(kPart * static_cast<std::size_t>(i), kPart);
    std::iota(part.begin(), part.end(), static_cast<float>(i));
    statuses.push_back(stage.post(i, {.kind = OperationKind::all_gather,
                                      .input = view_of(part),
                                      .output = view_of(std::span(own)),
                                      .deadline = std::chrono::milliseconds(50)}));
  }
  stage.settle();

  for (int i = 0; i + 1 < n; ++i) {
    EXPECT_NE(outcome_of(*statuses[static_cast<std::size_t>(i)]), "ok");
    const auto& own = values[static_cast<std::size_t>(i)];
    for (std::size_t at = 0; at < kPart; ++at)
      ASSERT_EQ(own[kPart * static_cast<std::size_t>(i) + at], static_cast<float>(i) + static_cast<float>(at))
          << "member " << i;
  }
}

TEST_P(CollectiveFailure, LostMemberIsNamedWithItsAddress) {
  if (n == 1 || std::get<0>(GetParam()) != BackendKind::tcp) GTEST_SKIP() << "only TCP has addresses";
  const auto lost = std::to_string(stage.company->options_of(n - 1, "dp", {}).self.value);
  stage.groups.back().reset();

  const auto status = stage.post(0, {});
  stage.settle();

  EXPECT_EQ(outcome_of(*status), "peer_lost");
  EXPECT_THAT(message_of(*status),
              ::testing::ContainsRegex("rank " + lost + " at 127.0.0.1 port [0-9]+ \\([^[]*\\);"));
}

/// What a process holds that could leak.
struct Holdings {
  static std::size_t entries(const char* directory, const std::string& part_of_name = {}) {
    const std::filesystem::directory_iterator all(directory);
    return static_cast<std::size_t>(std::count_if(begin(all), end(all), [&](const auto& entry) {
      return entry.path().filename().string().find(part_of_name) != std::string::npos;
    }));
  }

  std::size_t descriptors = entries("/proc/self/fd");
  std::size_t threads = entries("/proc/self/task");
  /// Other processes have segments too; a job's bear the number of its process.
  std::size_t segments = entries("/dev/shm", "-" + std::to_string(::getpid()) + "-");

  friend bool operator==(const Holdings&, const Holdings&) = default;
};

TEST(CollectiveEpochs, AHundredAbortsAtAnyMomentLeakNothing) {
  for (const BackendKind kind :
       {BackendKind::simulated, BackendKind::shared_memory, BackendKind::tcp, BackendKind::nccl}) {
    std::mt19937_64 random(99);
    const auto company = Company::form(kind, 3);
    const auto streams = company->create_streams();
    std::vector<Bytes> buffers(3, Bytes(1 << 18));
    std::optional<Holdings> before;
    for (std::uint64_t epoch = 1; epoch <= 100; ++epoch) {
      auto groups = company->create_groups("dp", {epoch});
      std::vector<std::shared_ptr<OperationStatus>> statuses;
      const auto post_to_all = [&](std::size_t bytes) {
        for (std::size_t i = 0; i < 3; ++i) {
          const BufferView view{buffers[i].data(), bytes};
          statuses.push_back(
              groups[i]
                  ->post({.kind = OperationKind::all_reduce, .input = view, .output = view}, streams[i].get())
                  .value());
        }
      };
      post_to_all(64);
      company->settle(streams);
      for (const auto& status : statuses) ASSERT_EQ(outcome_of(*status), "ok") << message_of(*status);

      for (int i = 0; i < 3; ++i) post_to_all(random() % buffers[0].size() / 4 * 4);
      // In real time the members are somewhere in these operations now.
      for (std::size_t i = 0; i < random() % 4; ++i) std::this_thread::yield();
      for (const auto& group : groups) group->abort({core::Errc::aborted, "the epoch ended"});
      company->settle(streams);
      for (const auto& status : statuses) ASSERT_NE(outcome_of(*status), "running");
      groups.clear();
      // The first epoch brings what stays, for example the library's own buffers.
      if (!before) before = Holdings{};
    }
    EXPECT_TRUE(*before == Holdings{}) << kind;
  }
}

TEST(CollectiveEpochs, WhoeverIsDoneFirstLeavesWithoutHarm) {
  using Counts = std::vector<std::size_t>;
  for (const BackendKind kind : {BackendKind::shared_memory, BackendKind::tcp, BackendKind::nccl}) {
    const auto company = Company::form(kind, 3);
    const auto streams = company->create_streams();
    std::vector<Bytes> buffers(3, Bytes(32));
    for (std::uint64_t epoch = 1; epoch <= 20; ++epoch) {
      auto groups = company->create_groups("dp", {epoch});
      std::promise<void> third_is_gone;
      std::vector<std::string> outcomes(3);
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < 3; ++i) {
        threads.emplace_back([&, i] {
          // Over TCP the first still waits for the second when the third has sent its share and is gone.
          if (i == 1) (void)third_is_gone.get_future().wait_for(std::chrono::milliseconds(10));
          Operation operation{.kind = OperationKind::all_to_all,
                              .input_counts = i == 0 ? Counts{0, 0, 0} : Counts{4, 0, 0},
                              .output_counts = i == 0 ? Counts{0, 4, 4} : Counts{0, 0, 0}};
          operation.input = {buffers[i].data(), operation.input_counts.total() * 4};
          operation.output = {buffers[i].data(), operation.output_counts.total() * 4};
          const auto status = groups[i]->post(operation, streams[i].get()).value();
          EXPECT_TRUE(streams[i]->synchronize(std::chrono::seconds(60)).has_value());
          groups[i].reset();
          if (i == 2) third_is_gone.set_value();
          outcomes[i] = outcome_of(*status) + message_of(*status);
        });
      }
      threads.clear();
      ASSERT_THAT(outcomes, ::testing::Each(std::string("ok"))) << kind << ", epoch " << epoch;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, CollectiveFailure,
                         ::testing::Combine(::testing::Values(BackendKind::simulated,
                                                              BackendKind::shared_memory, BackendKind::tcp,
                                                              BackendKind::nccl),
                                            ::testing::Values(1, 2, 3, 4, 8)),
                         name_of_case);

}  // namespace
}  // namespace troupe::gpu
