#include <fmt/format.h>

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

#include "gpu/device.hpp"
#include "gpu/kernels.hpp"
#include "gpu/order/host_line.hpp"
#include "tests/gpu/rig.hpp"

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;

/// One number in memory of the device: what tasks of the tests write.
class Cell {
 public:
  Cell(Rig& rig, float value) : rig_(rig), memory_(rig.device().allocate(sizeof(float)).value()) {
    rig.write(&value, memory_.view());
  }

  Elements elements() const { return {memory_.view(), core::DType::f32}; }
  BufferView view() const { return memory_.view(); }
  /// What is there now, whatever is enqueued.
  float value() const {
    float found = 0;
    rig_.read(memory_.view(), &found);
    return found;
  }

 private:
  Rig& rig_;
  Buffer memory_;
};

class DeviceContract : public testing::TestWithParam<DeviceUnderTest> {
 protected:
  void SetUp() override {
    auto rig = GetParam().make();
    if (!rig && rig.error().code == core::Errc::unavailable) GTEST_SKIP() << rig.error().message;
    ASSERT_TRUE(rig) << rig.error().message;
    rig_ = std::move(*rig);
  }

  Device& device() { return rig_->device(); }
  Stream stream(std::string name) { return device().create_stream({.name = std::move(name)}).value(); }
  Event event() { return device().create_event().value(); }
  Cell cell(float value = 0) { return {*rig_, value}; }
  Completion block(const Stream& stream) { return rig_->block(stream); }

  /// Lets the device work until the stream has done everything enqueued so far.
  void drain(const Stream& stream) {
    auto done = std::make_shared<std::promise<void>>();
    auto past = std::make_shared<Past>();
    stream->notify([done, past] {
      *past = HostLine::current().past();
      done->set_value();
    });
    rig_->reach(done->get_future());
    HostLine::current().join(*past);
  }

  void reach(std::promise<void>& moment) { rig_->reach(moment.get_future()); }

  std::unique_ptr<Rig> rig_;
};

/// The contract of devices whose tasks may be work of the host.
class HostWorkContract : public DeviceContract {};

TEST_P(DeviceContract, AllocatesZeroedMemoryAlignedTo256Bytes) {
  for (const std::size_t bytes : {1, 255, 256, 257, 4096, 100'000, 1 << 20, (3 << 20) + 5}) {
    const Buffer buffer = device().allocate(bytes).value();

    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.view().data) % 256, 0U);
    std::vector<std::uint8_t> contents(bytes, 1);
    rig_->read(buffer.view(), contents.data());
    EXPECT_TRUE(std::all_of(contents.begin(), contents.end(), [](auto byte) { return byte == 0; }));
    std::fill(contents.begin(), contents.end(), 0xff);
    rig_->write(contents.data(), buffer.view());
  }
}

TEST_P(DeviceContract, StagingMemoryIsHostMemoryThatStreamsCopy) {
  const auto one = stream("one");
  const Buffer there = device().allocate(1000).value();
  for (int round = 0; round < 2; ++round) {
    const Buffer from = device().allocate_staging(1000).value();
    const Buffer to = device().allocate_staging(1000).value();
    const auto zeros = to.view().as<std::uint8_t>();
    EXPECT_TRUE(std::all_of(zeros.begin(), zeros.end(), [](auto byte) { return byte == 0; }));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(from.view().data) % 256, 0U);
    std::memset(from.view().data, 17 + round, 1000);

    copy(from.view(), there.view(), one.get());
    copy(there.view(), to.view(), one.get());
    drain(one);

    EXPECT_EQ(std::memcmp(to.view().data, from.view().data, 1000), 0);
  }
}

TEST_P(DeviceContract, SaysWhetherTheHostReachesItsMemory) {
  const Cell written = cell(1);
  ASSERT_EQ(device().is_host_memory(), device().kind() != DeviceKind::cuda);
  if (!device().is_host_memory()) return;

  written.view().as<float>()[0] = 2;

  EXPECT_EQ(written.value(), 2.0F);
}

TEST_P(DeviceContract, AllocatesNothingForZeroBytes) {
  EXPECT_EQ(device().allocate(0).value().bytes(), 0U);
}

TEST_P(DeviceContract, RefusesTooMuchMemoryAndSaysHowMuch) {
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
  constexpr std::size_t kTasks = 500;
  const auto one = stream("one");
  const Cell last = cell();
  const Buffer log = device().allocate(kTasks * sizeof(float)).value();

  for (std::size_t i = 0; i < kTasks; ++i) {
    fill(last.elements(), static_cast<float>(i + 1), one.get());
    copy(last.view(), log.view().subview(i * sizeof(float), sizeof(float)), one.get());
  }
  drain(one);

  std::vector<float> found(kTasks);
  rig_->read(log.view(), found.data());
  for (std::size_t i = 0; i < kTasks; ++i) ASSERT_EQ(found[i], static_cast<float>(i + 1));
}

TEST_P(DeviceContract, TasksOfOneStreamDoNotHoldUpAnother) {
  const auto blocked = stream("blocked");
  const auto free = stream("free");
  const Completion completion = block(blocked);
  const Cell ran = cell();

  fill(ran.elements(), 1, free.get());
  drain(free);

  EXPECT_EQ(ran.value(), 1.0F);
  completion();
  drain(blocked);
}

TEST_P(DeviceContract, AnAsynchronousTaskOccupiesItsStreamUntilItsCompletion) {
  const auto one = stream("one");
  const auto other = stream("other");
  const Completion completion = block(one);
  const Cell ran = cell();

  fill(ran.elements(), 1, one.get());
  drain(other);

  EXPECT_EQ(ran.value(), 0.0F);
  completion();
  drain(one);
  EXPECT_EQ(ran.value(), 1.0F);
}

TEST_P(HostWorkContract, AnAsynchronousTaskMayCompleteInsideItsStart) {
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

TEST_P(HostWorkContract, ATaskMayEnqueueToItsOwnStream) {
  const auto one = stream("one");
  std::promise<void> ran;

  one->enqueue("outer", {}, [&] { one->enqueue("inner", {}, [&ran] { ran.set_value(); }); });

  reach(ran);
}

TEST_P(DeviceContract, NeverRecordedEventIsCompleteAndBlocksNothing) {
  const auto never = event();
  const auto one = stream("one");

  one->wait(never.get());
  drain(one);

  EXPECT_TRUE(never->is_complete());
  EXPECT_TRUE(never->wait(0ns));
}

TEST_P(DeviceContract, EventCompletesWhenTheWorkBeforeIsDone) {
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
  const Cell value = cell();
  const Cell seen = cell(-1);

  fill(value.elements(), 42, writer.get());
  writer->record(written.get());
  reader->wait(written.get());
  copy(value.view(), seen.view(), reader.get());
  completion();
  drain(reader);

  EXPECT_EQ(seen.value(), 42.0F);
}

TEST_P(DeviceContract, WaitRefersToTheLatestEarlierRecord) {
  const auto slow = stream("slow");
  const auto fast = stream("fast");
  const auto waiting = stream("waiting");
  const auto moved = event();
  const Completion completion = block(slow);
  const Cell ran = cell();

  slow->record(moved.get());
  waiting->wait(moved.get());
  fill(ran.elements(), 1, waiting.get());
  fast->record(moved.get());
  drain(fast);

  EXPECT_TRUE(moved->is_complete()) << "the event stands for the record on the fast stream now";
  EXPECT_EQ(ran.value(), 0.0F) << "the wait still refers to the record on the slow stream";
  completion();
  drain(waiting);
  EXPECT_EQ(ran.value(), 1.0F);
}

TEST_P(DeviceContract, WaitDoesNotReferToALaterRecord) {
  const auto slow = stream("slow");
  const auto waiting = stream("waiting");
  const auto later = event();
  const Completion completion = block(slow);
  const Cell ran = cell();

  waiting->wait(later.get());
  slow->record(later.get());
  fill(ran.elements(), 1, waiting.get());
  drain(waiting);

  EXPECT_EQ(ran.value(), 1.0F);
  completion();
  drain(slow);
}

TEST_P(DeviceContract, OneEventReleasesAllThatWaitForIt) {
  const auto source = stream("source");
  const auto go = event();
  const Completion completion = block(source);
  source->record(go.get());
  std::vector<Stream> waiting;
  std::vector<Cell> ran;
  for (int i = 0; i < 5; ++i) {
    waiting.push_back(stream(fmt::format("waiting {}", i)));
    waiting.back()->wait(go.get());
    ran.push_back(cell());
    fill(ran.back().elements(), 1, waiting.back().get());
  }

  completion();
  for (const auto& one : waiting) drain(one);

  for (const auto& one : ran) EXPECT_EQ(one.value(), 1.0F);
}

TEST_P(DeviceContract, NotifiesWhenEverythingEnqueuedSoFarIsDone) {
  const auto one = stream("one");
  const Buffer seen = device().allocate_staging(2 * sizeof(float)).value();
  const auto words = seen.view().as<float>();
  const Cell first = cell(1);
  const Completion completion = block(one);
  std::atomic<float> at_notice = -1;

  copy(first.view(), seen.view().subview(0, sizeof(float)), one.get());
  one->notify([&] { at_notice = words[0]; });
  copy(first.view(), seen.view().subview(sizeof(float), sizeof(float)), one.get());

  EXPECT_EQ(at_notice, -1.0F);
  completion();
  drain(one);
  EXPECT_EQ(at_notice, 1.0F);
  EXPECT_EQ(words[1], 1.0F);
}

TEST_P(DeviceContract, NotifiesInTheOrderOfTheStreamAndOnce) {
  const auto one = stream("one");
  const Cell some = cell();
  std::vector<int> order;

  for (int i = 0; i < 200; ++i) {
    if (i % 3 == 0) fill(some.elements(), 1, one.get());
    one->notify([&order, i] { order.push_back(i); });
  }
  drain(one);

  ASSERT_EQ(order.size(), 200U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST_P(DeviceContract, ReportsEachTaskOnceWithStreamLabelAndTimes) {
  std::mutex mutex;
  std::vector<std::tuple<std::string, std::string, DeviceTime, DeviceTime>> records;
  const auto one = stream("one");
  const auto marked = event();
  const Cell some = cell();
  const Cell other = cell();
  device().observe([&](const TaskRecord& record) {
    std::lock_guard lock(mutex);
    records.emplace_back(record.stream, record.label, record.begin, record.end);
  });
  const DeviceTime before = device().now();

  fill(some.elements(), 1, one.get());
  one->record(marked.get());
  one->wait(marked.get());
  copy(some.view(), other.view(), one.get());
  drain(one);
  device().observe({});
  zero(other.view(), one.get());
  drain(one);

  std::lock_guard lock(mutex);
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(std::get<0>(records[0]), "one");
  EXPECT_EQ(std::get<1>(records[0]), "fill");
  EXPECT_EQ(std::get<1>(records[1]), "copy");
  EXPECT_LE(before, std::get<2>(records[0]));
  EXPECT_LE(std::get<2>(records[0]), std::get<3>(records[0]));
  EXPECT_LE(std::get<3>(records[0]), std::get<2>(records[1]));
  EXPECT_LE(std::get<3>(records[1]), device().now());
}

TEST_P(DeviceContract, AnEmptyStreamIsSynchronizedAtOnce) {
  const auto one = stream("one");
  const Cell some = cell();
  fill(some.elements(), 1, one.get());
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

std::vector<DeviceUnderTest> devices_that_take_host_work() {
  auto devices = devices_under_test();
  std::erase_if(devices, [](const DeviceUnderTest& device) { return !device.takes_host_work; });
  return devices;
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceContract, testing::ValuesIn(devices_under_test()),
                         [](const auto& under_test) { return under_test.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HostWorkContract);
INSTANTIATE_TEST_SUITE_P(Devices, HostWorkContract, testing::ValuesIn(devices_that_take_host_work()),
                         [](const auto& under_test) { return under_test.param.name; });

}  // namespace
}  // namespace troupe::gpu
