#include "actors/planes/step/exposure.hpp"

#include <gtest/gtest.h>

#include "actors/planes/step/data_plane.hpp"
#include "gpu/simulated/simulated_device.hpp"
#include "tests/gpu/manual_timeline.hpp"

namespace troupe::actors {
namespace {

using std::chrono::nanoseconds;

BusyMoment moment(int at, int communication, int optimizer = 0) {
  return {nanoseconds(at), nanoseconds(communication), nanoseconds(optimizer)};
}

TEST(Exposure, OfAHostTrainerIsTheWholeWait) {
  const auto cost = exposure(moment(100, 10), moment(160, 50), nullptr);
  EXPECT_EQ(cost.total.count(), 60);
  EXPECT_EQ(cost.communication.count(), 40);
}

TEST(Exposure, CountsWaitsNotForCommunicationAsTheOptimizers) {
  const auto apart = exposure(moment(100, 10, 5), moment(160, 30, 20), nullptr);
  EXPECT_EQ(apart.communication.count(), 20);
  EXPECT_EQ(apart.optimizer.count(), 15);

  const auto at_once = exposure(moment(100, 10, 5), moment(160, 60, 35), nullptr);
  EXPECT_EQ(at_once.communication.count(), 50);
  EXPECT_EQ(at_once.optimizer.count(), 10);
}

TEST(Exposure, BeginsWhenTheComputeStreamIsEmpty) {
  ComputeWatch watch;
  watch.reach(moment(140, 35));
  const auto cost = exposure(moment(100, 10), moment(160, 50), &watch);
  EXPECT_EQ(cost.total.count(), 20);
  EXPECT_EQ(cost.communication.count(), 15);
}

TEST(Exposure, IsNothingWhileTheComputeStreamIsBusy) {
  const ComputeWatch watch;
  const auto cost = exposure(moment(100, 10), moment(160, 50), &watch);
  EXPECT_EQ(cost.total.count(), 0);
  EXPECT_EQ(cost.communication.count(), 0);
}

TEST(Exposure, DoesNotCountWhatCameBeforeTheWait) {
  ComputeWatch watch;
  watch.reach(moment(90, 5));
  const auto cost = exposure(moment(100, 10), moment(160, 50), &watch);
  EXPECT_EQ(cost.total.count(), 60);
  EXPECT_EQ(cost.communication.count(), 40);
}

TEST(Exposure, WatchesTheComputeStreamInVirtualTime) {
  const TrainingPlan plan = plan_training({{"w", {64}}}, {}, {1}).value();
  gpu::ManualTimeline timeline;
  gpu::SimulatedDevice device(timeline, gpu::SimulatedDeviceOptions{});
  DataPlane::Options options;
  options.post = [](const messages::Envelope&) {};
  const auto plane = DataPlane::create(device, plan, std::move(options)).value();
  EXPECT_EQ(plane->watch_compute(), nullptr);

  nanoseconds ended{};
  plane->marks().compute_stream().value()->enqueue("forward", {std::uint64_t{1} << 30}, [] {});
  const auto watch = plane->watch_compute();
  EXPECT_FALSE(watch->reached());
  plane->marks().compute_stream().value()->notify([&] { ended = device.now(); });
  plane->marks().compute_stream().value()->enqueue("more", {std::uint64_t{1} << 30}, [] {});
  timeline.run_until_idle();

  ASSERT_TRUE(watch->reached());
  EXPECT_GT(ended.count(), 0);
  EXPECT_EQ(watch->reached()->at, ended);
}

}  // namespace
}  // namespace troupe::actors
