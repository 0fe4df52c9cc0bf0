#include "gpu/simulated/simulated_device.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tests/gpu/manual_timeline.hpp"

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;

class SimulatedDeviceTest : public testing::Test {
 protected:
  Stream stream(std::string name) { return device_.create_stream({.name = std::move(name)}).value(); }

  ManualTimeline timeline_;
  // One byte a nanosecond, and ten nanoseconds for the task itself.
  SimulatedDevice device_{timeline_, {.task_latency = 10ns, .bytes_per_second = 1e9, .memory_bytes = 1000}};
};

TEST_F(SimulatedDeviceTest, ATaskTakesItsLatencyAndItsBytes) {
  auto one = stream("one");
  std::vector<std::chrono::nanoseconds> times;

  one->enqueue("a", {.bytes_touched = 90}, [&] { times.push_back(timeline_.now()); });
  one->enqueue("b", {.bytes_touched = 190}, [&] { times.push_back(timeline_.now()); });
  timeline_.run_until_idle();

  EXPECT_EQ(times, (std::vector<std::chrono::nanoseconds>{100ns, 300ns}));
}

TEST_F(SimulatedDeviceTest, ASlowDeviceTakesAFactorLonger) {
  auto one = stream("one");
  std::chrono::nanoseconds end{};

  device_.set_slowdown(3);
  one->enqueue("a", {.bytes_touched = 90}, [&] { end = timeline_.now(); });
  timeline_.run_until_idle();

  EXPECT_EQ(end, 300ns);
}

TEST_F(SimulatedDeviceTest, NothingRunsInsideTheCallThatEnqueuesIt) {
  auto one = stream("one");
  bool ran = false;

  one->enqueue_async("start", [&ran](const Completion& completion) {
    ran = true;
    completion();
  });
  one->notify([&ran] { ran = true; });

  EXPECT_FALSE(ran);
  timeline_.run_until_idle();
  EXPECT_TRUE(ran);
}

TEST_F(SimulatedDeviceTest, ReaderThatForgetsToWaitSeesOldBytes) {
  auto writer = stream("writer");
  auto reader = stream("reader");
  int value = 0;
  int seen = -1;

  writer->enqueue("write", {.bytes_touched = 100}, [&] { value = 1; });
  reader->enqueue("read", {.bytes_touched = 10}, [&] { seen = value; });
  timeline_.run_until_idle();

  EXPECT_EQ(seen, 0);
}

TEST_F(SimulatedDeviceTest, DestroyingAStreamDropsWhatIsLeft) {
  auto one = stream("one");
  Completion late;
  bool ran = false;
  one->enqueue_async("collective", [&late](Completion completion) { late = std::move(completion); });
  one->enqueue("after", {}, [&ran] { ran = true; });
  timeline_.run_until_idle();

  one.reset();
  late();
  timeline_.run_until_idle();

  EXPECT_FALSE(ran);
}

TEST_F(SimulatedDeviceTest, ThousandsOfRecordsInARowNeedNoStack) {
  auto one = stream("one");
  auto event = device_.create_event().value();

  for (int i = 0; i < 200'000; ++i) one->record(event.get());
  timeline_.run_until_idle();

  EXPECT_TRUE(event->is_complete());
}

TEST_F(SimulatedDeviceTest, MemoryGivenBackMayBeAllocatedAgain) {
  auto first = device_.allocate(600).value();
  EXPECT_FALSE(device_.allocate(600));

  first = Buffer();

  EXPECT_TRUE(device_.allocate(600));
}

TEST_F(SimulatedDeviceTest, CompletingATaskTwiceIsAProgrammingError) {
  auto one = stream("one");
  one->enqueue_async("twice", [](const Completion& completion) {
    completion();
    completion();
  });

  EXPECT_DEATH(timeline_.run_until_idle(), "a task completes once");
}

}  // namespace
}  // namespace troupe::gpu
