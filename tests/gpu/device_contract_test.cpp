#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "gpu/host/host_device.hpp"
#include "gpu/simulated/simulated_device.hpp"
#include "tests/gpu/manual_timeline.hpp"

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;

/// A device under test, and the way to let it make progress.
class Rig {
 public:
  virtual ~Rig() = default;
  virtual Device& device() = 0;
  /// Lets the device work until `moment` is set. A minute of real time, or the end of virtual work, is a
  /// failure.
  virtual void reach(std::future<void> moment) = 0;
};

class HostRig final : public Rig {
 public:
  Device& device() override { return *device_; }
  void reach(std::future<void> moment) override {
    ASSERT_EQ(moment.wait_for(60s), std::future_status::ready) << "the device did not get there";
  }

 private:
  std::unique_ptr<Device> device_ = open_host_device().value();
};

class SimulatedRig final : public Rig {
 public:
  Device& device() override { return device_; }
  void reach(std::future<void> moment) override {
    while (moment.wait_for(0s) != std::future_status::ready) {
      ASSERT_TRUE(timeline_.step()) << "the device did not get there";
    }
  }

 private:
  ManualTimeline timeline_;
  SimulatedDevice device_{timeline_, {.bytes_per_second = 1e9}};
};

struct DeviceUnderTest {
  std::string name;
  std::function<std::unique_ptr<Rig>()> make;
};

class DeviceContract : public testing::TestWithParam<DeviceUnderTest> {
 protected:
  Device& device() { return rig_->device(); }
  Stream stream(std::string name) { return device().create_stream({.name = std::move(name)}).value(); }
  Event event() { return device().create_event().value(); }

  /// Lets the device work until the stream has done everything enqueued so far.
  void drain(const Stream& stream) {
    auto done = std::make_shared<std::promise<void>>();
    stream->notify([done] { done->set_value(); });
    rig_->reach(done->get_future());
  }

  void reach(std::promise<void>& moment) { rig_->reach(moment.get_future()); }

  /// Occupies the stream until the returned Completion is called. Returns once the task has started.
  Completion block(const Stream& stream) {
    auto started = std::make_shared<std::promise<Completion>>();
    auto has_started = std::make_shared<std::promise<void>>();
    stream->enqueue_async("block", [started, has_started](Completion completion) {
      started->set_value(std::move(completion));
      has_started->set_value();
    });
    reach(*has_started);
    return started->get_future().get();
  }

  std::unique_ptr<Rig> rig_ = GetParam().make();
};

TEST_P(DeviceContract, AllocatesZeroedMemoryAlignedTo256Bytes) {
  for (const std::size_t bytes : {1, 255, 256, 257, 4096, 100'000, 1 << 20, (3 << 20) + 5}) {
    const Buffer buffer = device().allocate(bytes).value();

    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.view().data) % 256, 0U);
    const auto contents = buffer.view().as<std::uint8_t>();
    EXPECT_TRUE(std::all_of(contents.begin(), contents.end(), [](auto byte) { return byte == 0; }));
    std::memset(buffer.view().data, 0xff, bytes);
  }
}

TEST_P(DeviceContract, AllocatesNothingForZeroBytes) {
  EXPECT_EQ(device().allocate(0).value().bytes(), 0U);
}

TEST_P(DeviceContract, RefusesMoreMemoryThanThereIsAndSaysHowMuchWasAskedFor) {
  for (const std::size_t bytes : {std::size_t{1} << 60, ~std::size_t{0}}) {
    const auto buffer = device().allocate(bytes);

    ASSERT_FALSE(buffer);
    EXPECT_EQ(buffer.error().code, core::Errc::out_of_memory);
    EXPECT_NE(buffer.error().message.find(std::to_string(bytes)), std::string::npos);
  }
}

TEST_P(DeviceContract, StreamsKeepTheirNames) {
  EXPECT_EQ(stream("communication")->name(), "communication");
}

TEST_P(DeviceContract, RunsTheTasksOfAStreamInOrder) {
  const auto one = stream("one");
  std::vector<int> order;

  for (int i = 0; i < 1000; ++i) one->enqueue("append", {}, [&order, i] { order.push_back(i); });
  drain(one);

  ASSERT_EQ(order.size(), 1000U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST_P(DeviceContract, TasksOfOneStreamDoNotHoldUpAnother) {
  const auto blocked = stream("blocked");
  const auto free = stream("free");
  const Completion completion = block(blocked);
  bool ran = false;

  free->enqueue("run", {}, [&ran] { ran = true; });
  drain(free);

  EXPECT_TRUE(ran);
  completion();
  drain(blocked);
}

TEST_P(DeviceContract, AnAsynchronousTaskOccupiesItsStreamUntilItsCompletion) {
  const auto one = stream("one");
  const auto other = stream("other");
  const Completion completion = block(one);
  std::atomic<bool> ran = false;

  one->enqueue("after", {}, [&ran] { ran = true; });
  drain(other);

  EXPECT_FALSE(ran);
  completion();
  drain(one);
  EXPECT_TRUE(ran);
}

TEST_P(DeviceContract, AnAsynchronousTaskMayCompleteInsideItsStart) {
  const auto one = stream("one");
  int started = 0;

  for (int i = 0; i < 100; ++i) {
    one->enqueue_async("now", [&started](const Completion& completion) {
      ++started;
      completion();
    });
  }
  drain(one);

  EXPECT_EQ(started, 100);
}

TEST_P(DeviceContract, ATaskMayEnqueueToItsOwnStream) {
  const auto one = stream("one");
  std::promise<void> ran;

  one->enqueue("outer", {}, [&] { one->enqueue("inner", {}, [&ran] { ran.set_value(); }); });

  reach(ran);
}

TEST_P(DeviceContract, AnEventNeverRecordedIsCompleteAndHoldsNothingUp) {
  const auto never = event();
  const auto one = stream("one");

  one->wait(never.get());
  drain(one);

  EXPECT_TRUE(never->is_complete());
  EXPECT_TRUE(never->wait(0ns));
}

TEST_P(DeviceContract, AnEventCompletesWhenTheWorkBeforeItsRecordIsDone) {
  const auto one = stream("one");
  const auto recorded = event();
  const Completion completion = block(one);

  one->record(recorded.get());

  EXPECT_FALSE(recorded->is_complete());
  completion();
  drain(one);
  EXPECT_TRUE(recorded->is_complete());
  EXPECT_TRUE(recorded->wait(0ns));
}

TEST_P(DeviceContract, WorkAfterARecordDoesNotDelayItsEvent) {
  const auto one = stream("one");
  const auto recorded = event();

  one->record(recorded.get());
  const Completion completion = block(one);

  EXPECT_TRUE(recorded->is_complete());
  completion();
  drain(one);
}

TEST_P(DeviceContract, AWaitOrdersTheTasksOfTwoStreams) {
  const auto writer = stream("writer");
  const auto reader = stream("reader");
  const auto written = event();
  const Completion completion = block(writer);
  int value = 0;
  int seen = -1;

  writer->enqueue("write", {}, [&value] { value = 42; });
  writer->record(written.get());
  reader->wait(written.get());
  reader->enqueue("read", {}, [&] { seen = value; });
  completion();
  drain(reader);

  EXPECT_EQ(seen, 42);
}

TEST_P(DeviceContract, AWaitRefersToTheLatestRecordBeforeItsCall) {
  const auto slow = stream("slow");
  const auto fast = stream("fast");
  const auto waiting = stream("waiting");
  const auto moved = event();
  const Completion completion = block(slow);
  std::atomic<bool> ran = false;

  slow->record(moved.get());
  waiting->wait(moved.get());
  waiting->enqueue("run", {}, [&ran] { ran = true; });
  fast->record(moved.get());
  drain(fast);

  EXPECT_TRUE(moved->is_complete()) << "the event stands for the record on the fast stream now";
  EXPECT_FALSE(ran) << "the wait still refers to the record on the slow stream";
  completion();
  drain(waiting);
  EXPECT_TRUE(ran);
}

TEST_P(DeviceContract, AWaitDoesNotReferToARecordAfterItsCall) {
  const auto slow = stream("slow");
  const auto waiting = stream("waiting");
  const auto later = event();
  const Completion completion = block(slow);
  bool ran = false;

  waiting->wait(later.get());
  slow->record(later.get());
  waiting->enqueue("run", {}, [&ran] { ran = true; });
  drain(waiting);

  EXPECT_TRUE(ran);
  completion();
  drain(slow);
}

TEST_P(DeviceContract, OneEventReleasesAllThatWaitForIt) {
  const auto source = stream("source");
  const auto go = event();
  const Completion completion = block(source);
  source->record(go.get());
  std::vector<Stream> waiting;
  std::atomic<int> ran = 0;
  for (int i = 0; i < 5; ++i) {
    waiting.push_back(stream(fmt::format("waiting {}", i)));
    waiting.back()->wait(go.get());
    waiting.back()->enqueue("run", {}, [&ran] { ++ran; });
  }

  completion();
  for (const auto& one : waiting) drain(one);

  EXPECT_EQ(ran, 5);
}

TEST_P(DeviceContract, NotifiesWhenEverythingEnqueuedSoFarIsDone) {
  const auto one = stream("one");
  const Completion completion = block(one);
  std::atomic<int> finished = 0;
  std::atomic<int> finished_at_notice = -1;

  one->enqueue("first", {}, [&finished] { ++finished; });
  one->notify([&] { finished_at_notice = finished.load(); });
  one->enqueue("second", {}, [&finished] { ++finished; });

  EXPECT_EQ(finished_at_notice, -1);
  completion();
  drain(one);
  EXPECT_EQ(finished_at_notice, 1);
  EXPECT_EQ(finished, 2);
}

TEST_P(DeviceContract, ReportsEachTaskOnceWithItsStreamLabelAndTimes) {
  std::mutex mutex;
  std::vector<std::tuple<std::string, std::string, DeviceTime, DeviceTime>> records;
  device().observe([&](const TaskRecord& record) {
    std::lock_guard lock(mutex);
    records.emplace_back(record.stream, record.label, record.begin, record.end);
  });
  const auto one = stream("one");
  const auto marked = event();
  const DeviceTime before = device().now();

  one->enqueue("copy", {.bytes_touched = 4096}, [] {});
  one->record(marked.get());
  one->wait(marked.get());
  one->enqueue_async("reduce", [](const Completion& completion) { completion(); });
  drain(one);
  device().observe({});
  one->enqueue("unseen", {}, [] {});
  drain(one);

  std::lock_guard lock(mutex);
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(std::get<0>(records[0]), "one");
  EXPECT_EQ(std::get<1>(records[0]), "copy");
  EXPECT_EQ(std::get<1>(records[1]), "reduce");
  EXPECT_LE(before, std::get<2>(records[0]));
  EXPECT_LE(std::get<2>(records[0]), std::get<3>(records[0]));
  EXPECT_LE(std::get<3>(records[0]), std::get<2>(records[1]));
  EXPECT_LE(std::get<3>(records[1]), device().now());
}

TEST_P(DeviceContract, AnEmptyStreamIsSynchronizedAtOnce) {
  const auto one = stream("one");
  one->enqueue("run", {}, [] {});
  drain(one);
  // The notification itself may still be leaving a real stream; a deadline far away costs nothing.
  EXPECT_TRUE(one->synchronize(60s));
}

TEST_P(DeviceContract, ABlockedStreamIsNotSynchronized) {
  const auto one = stream("one");
  const auto recorded = event();
  const Completion completion = block(one);
  one->record(recorded.get());

  const auto synchronized = one->synchronize(1ms);
  const auto waited = recorded->wait(1ms);

  const auto expected =
      device().kind() == DeviceKind::simulated ? core::Errc::unavailable : core::Errc::timeout;
  ASSERT_FALSE(synchronized);
  EXPECT_EQ(synchronized.error().code, expected);
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().code, expected);
  completion();
  drain(one);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceContract,
                         testing::Values(DeviceUnderTest{"host", [] { return std::make_unique<HostRig>(); }},
                                         DeviceUnderTest{"simulated",
                                                         [] { return std::make_unique<SimulatedRig>(); }}),
                         [](const auto& under_test) { return under_test.param.name; });

}  // namespace
}  // namespace troupe::gpu
