#include "gpu/collective/simulated/fabric.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "gpu/simulated/simulated_device.hpp"
#include "tests/gpu/collective/company.hpp"
#include "tests/gpu/manual_timeline.hpp"

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;

/// Three ranks, 0 to 2, with a group over a fabric that takes 10 us and moves 1 byte a nanosecond.
class SimulatedFabricTest : public ::testing::Test {
 protected:
  SimulatedFabricTest() {
    for (int i = 0; i < 3; ++i) {
      devices.push_back(std::make_unique<SimulatedDevice>(timeline, SimulatedDeviceOptions{}));
      streams.push_back(devices.back()->create_stream({.name = "test"}).value());
      groups.push_back(
          backend
              ->create_group(
                  {.job = "job", .epoch = {1}, .name = "dp", .members = {{0}, {1}, {2}}, .self = {i}})
              .value());
    }
  }

  std::shared_ptr<OperationStatus> post(int member, Operation operation = {}) {
    const auto i = static_cast<std::size_t>(member);
    return groups[i]->post(std::move(operation), streams[i].get()).value();
  }

  ManualTimeline timeline;
  SimulatedFabric fabric{timeline, {.latency = 10us, .bytes_per_second = 1e9, .detection_delay = 2ms}};
  std::unique_ptr<CollectiveBackend> backend = fabric.backend();
  std::vector<std::unique_ptr<SimulatedDevice>> devices;
  std::vector<Stream> streams;
  std::vector<std::unique_ptr<Group>> groups;
};

TEST_F(SimulatedFabricTest, RunsNothingInTheCallingThread) {
  EXPECT_EQ(groups[0]->run({.kind = OperationKind::barrier}).error().code, core::Errc::unavailable);
}

TEST_F(SimulatedFabricTest, OperationTakesLatencyAndBytesFromTheLastArrival) {
  std::array<std::vector<float>, 3> buffers;
  buffers.fill(std::vector<float>(3000, 1));
  std::chrono::nanoseconds done{};
  for (int i = 0; i < 3; ++i) {
    const auto view = view_of(std::span(buffers[static_cast<std::size_t>(i)]));
    post(i, {.kind = OperationKind::all_reduce, .input = view, .output = view});
  }
  streams[0]->notify([&] { done = timeline.now(); });
  timeline.run_until_idle();

  // 2 (n - 1) / n of 12,000 bytes at 1 byte a nanosecond.
  EXPECT_EQ(done, 10us + 16us);
  EXPECT_EQ(buffers[2][2999], 3);
}

TEST_F(SimulatedFabricTest, SlowRankSlowsTheOperationsItJoins) {
  fabric.slow_down({1}, 5);
  std::chrono::nanoseconds done{};
  for (int i = 0; i < 3; ++i) post(i);
  streams[0]->notify([&] { done = timeline.now(); });
  timeline.run_until_idle();

  EXPECT_EQ(done, 50us);
}

TEST_F(SimulatedFabricTest, DeadRankEndsSurvivorsAfterTheDetectionDelay) {
  const auto first = post(0);
  const auto victim = post(1);
  timeline.run_until(1ms);
  fabric.kill({1});
  timeline.run_until(3ms - 1ns);
  EXPECT_EQ(outcome_of(*first), "running");
  timeline.run_until(3ms);
  const auto late = post(2);
  timeline.run_until(4ms);

  EXPECT_EQ(outcome_of(*first), "peer_lost");
  EXPECT_THAT(message_of(*first), ::testing::HasSubstr("rank 1"));
  EXPECT_EQ(message_of(*late), message_of(*first));
  EXPECT_EQ(outcome_of(*victim), "running") << "nobody is left to hear of it";
}

TEST_F(SimulatedFabricTest, RankKilledDuringAnOperationSpoilsSurvivorsOutputs) {
  std::vector<std::byte> output(8);
  const auto root = post(0, {.kind = OperationKind::broadcast, .input = {output.data(), 0}});
  post(1, {.kind = OperationKind::broadcast, .output = {}});
  post(2, {.kind = OperationKind::broadcast});
  timeline.run_until_idle();
  ASSERT_EQ(outcome_of(*root), "ok");

  const std::vector<std::byte> input(8);
  const auto survivor = post(1, {.kind = OperationKind::broadcast, .output = {output.data(), 8}});
  post(0, {.kind = OperationKind::broadcast, .input = {input.data(), 8}});
  timeline.run_until(timeline.now() + 5us);
  fabric.kill({0});
  timeline.run_until_idle();

  EXPECT_EQ(outcome_of(*survivor), "peer_lost");
  EXPECT_EQ(output, std::vector<std::byte>(8, std::byte{0xa5}));
}

TEST_F(SimulatedFabricTest, HungRankEndsEverybodyAtTheDeadlineByName) {
  fabric.hang({2});
  std::vector<std::shared_ptr<OperationStatus>> statuses;
  for (int i = 0; i < 3; ++i) statuses.push_back(post(i, {.deadline = 7ms}));
  timeline.run_until(7ms);

  for (const auto& status : statuses) {
    EXPECT_EQ(outcome_of(*status), "timeout");
    EXPECT_THAT(message_of(*status), ::testing::HasSubstr("no sign of rank 2"));
  }
}

TEST_F(SimulatedFabricTest, ErrorMayReachSomeWhileOthersSucceed) {
  fabric.report_error({{1}}, {core::Errc::peer_lost, "a link went down"});
  std::vector<std::shared_ptr<OperationStatus>> statuses;
  for (int i = 0; i < 3; ++i) statuses.push_back(post(i));
  timeline.run_until_idle();

  EXPECT_EQ(outcome_of(*statuses[0]), "ok");
  EXPECT_EQ(message_of(*statuses[1]), "a link went down");
  EXPECT_EQ(outcome_of(*statuses[2]), "ok");
}

TEST_F(SimulatedFabricTest, NewEpochOfTheRanksWorksAfterADeath) {
  fabric.kill({1});
  timeline.run_until_idle();
  for (int i = 0; i < 3; ++i) {
    const auto at = static_cast<std::size_t>(i);
    streams[at] = devices[at]->create_stream({.name = "test"}).value();
    groups[at] = backend
                     ->create_group(
                         {.job = "job", .epoch = {2}, .name = "dp", .members = {{0}, {1}, {2}}, .self = {i}})
                     .value();
  }
  std::vector<std::shared_ptr<OperationStatus>> statuses;
  for (int i = 0; i < 3; ++i) statuses.push_back(post(i));
  timeline.run_until_idle();

  for (const auto& status : statuses) EXPECT_EQ(outcome_of(*status), "ok");
}

TEST_F(SimulatedFabricTest, MembersThatGiveOtherMembersAreRefused) {
  const auto refused =
      backend->create_group({.job = "job", .epoch = {1}, .name = "dp", .members = {{0}, {1}}, .self = {1}});

  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, core::Errc::mismatch);
}

}  // namespace
}  // namespace troupe::gpu
