#include "gpu/host/host_device.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gpu/host/memory.hpp"

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;

class HostDevice : public testing::Test {
 protected:
  Stream stream(std::string name) { return device_->create_stream({.name = std::move(name)}).value(); }

  std::unique_ptr<Device> device_ = open_host_device().value();
};

TEST_F(HostDevice, NamesItsThreadAfterTheStreamWithinLinuxsLimit) {
  std::promise<std::string> name;
  auto one = stream("communication-with-others");

  one->enqueue("name", {}, [&name] {
    std::array<char, 16> buffer{};
    pthread_getname_np(pthread_self(), buffer.data(), buffer.size());
    name.set_value(buffer.data());
  });

  EXPECT_EQ(name.get_future().get(), "communication-w");
}

TEST_F(HostDevice, ProvidesPagesAndKeepsWhatIsThere) {
  // No whole page at either end, and less than one.
  const auto pages = device_->allocate(std::size_t{4} << 20).value();
  auto bytes = pages.view().as<std::uint8_t>();
  for (std::size_t i = 0; i < bytes.size(); i += 1000) bytes[i] = 7;
  for (const std::size_t first : {std::size_t{0}, std::size_t{1}, std::size_t{5000}}) {
    for (const std::size_t end : {bytes.size(), bytes.size() - 1, first + 10, first}) {
      provide_pages(pages.view().subview(first, end - first));
    }
  }
  provide_pages({});

  std::vector<unsigned char> is_there(bytes.size() / 4096);
  ASSERT_EQ(mincore(pages.view().data, bytes.size(), is_there.data()), 0);
  EXPECT_EQ(std::count_if(is_there.begin(), is_there.end(), [](auto page) { return (page & 1) == 0; }), 0);
  for (std::size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], i % 1000 == 0 ? 7 : 0) << i;
}

TEST_F(HostDevice, ProvidesPagesAheadInAThread) {
  const auto pages = device_->allocate(std::size_t{40} << 20).value();
  const auto is_there = [&](std::size_t at) {
    unsigned char page = 0;
    EXPECT_EQ(mincore(pages.view().data + at, 1, &page), 0);
    return (page & 1) != 0;
  };
  const std::size_t last = pages.view().bytes - 4096;
  ASSERT_FALSE(is_there(last));

  EXPECT_FALSE(provide_pages_ahead({}).joinable()) << "there is nothing to do";
  provide_pages_ahead({{}, pages.view()}).join();

  EXPECT_TRUE(is_there(0) && is_there(std::size_t{17} << 20) && is_there(last));
}

long faults_so_far() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

TEST_F(HostDevice, TakesLargePiecesFromMemoryThatIsReady) {
  constexpr std::size_t kPiece = (std::size_t{3} << 20) + 100;
  const auto before = large_host_memory();
  ReadyHostMemory ready;
  ready.keep(6 * kPiece);
  ready.wait();
  EXPECT_EQ(large_host_memory(), before) << "it is not allocated yet";
  {
    std::vector<Buffer> pieces;
    for (int i = 0; i < 2; ++i) pieces.push_back(device_->allocate(kPiece).value());
    const auto faults = faults_so_far();
    for (const auto& piece : pieces) {
      const auto values = piece.view().as<unsigned char>();
      EXPECT_EQ(std::ranges::count(values, 0), static_cast<std::ptrdiff_t>(kPiece));
      std::ranges::fill(values, 1);
    }
    EXPECT_LT(faults_so_far() - faults, 100) << "of 1,538 pages";
    EXPECT_EQ(large_host_memory(), before + 2 * kPiece);
    const Buffer larger = device_->allocate(5 * kPiece).value();
    EXPECT_EQ(std::ranges::count(larger.view().as<unsigned char>(), 0),
              static_cast<std::ptrdiff_t>(5 * kPiece));
  }
  EXPECT_EQ(large_host_memory(), before);
  ready.keep(0);
  const Buffer piece = device_->allocate(kPiece).value();
  EXPECT_EQ(std::ranges::count(piece.view().as<unsigned char>(), 0), static_cast<std::ptrdiff_t>(kPiece));
}

TEST_F(HostDevice, DestroyingAStreamWaitsForWhatIsEnqueued) {
  std::promise<void> gate;
  int finished = 0;
  auto one = stream("one");
  one->enqueue("gate", {}, [opened = gate.get_future().share()] { opened.wait(); });
  for (int i = 0; i < 100; ++i) one->enqueue("count", {}, [&finished] { ++finished; });

  gate.set_value();
  one.reset();

  EXPECT_EQ(finished, 100);
}

TEST_F(HostDevice, SynchronizeReturnsOnceTheTasksHaveRun) {
  auto one = stream("one");
  std::vector<int> numbers;
  for (int i = 0; i < 1000; ++i) one->enqueue("append", {}, [&numbers, i] { numbers.push_back(i); });

  ASSERT_TRUE(one->synchronize(60s));

  EXPECT_EQ(numbers.size(), 1000U);
}

TEST_F(HostDevice, ManyThreadsMayEnqueueToOneStream) {
  auto one = stream("one");
  int sum = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 1000; ++i) one->enqueue("count", {}, [&sum] { ++sum; });
      });
    }
  }

  ASSERT_TRUE(one->synchronize(60s));

  EXPECT_EQ(sum, 4000);
}

TEST_F(HostDevice, ACompletionMayComeFromAnotherThread) {
  auto one = stream("one");
  std::jthread elsewhere;

  one->enqueue_async("hand over", [&elsewhere](Completion completion) {
    elsewhere = std::jthread([completion = std::move(completion)] { completion(); });
  });

  EXPECT_TRUE(one->synchronize(60s));
}

TEST_F(HostDevice, StreamReleasesATasksCapturesBeforeTheNextRuns) {
  auto one = stream("one");
  auto captured = std::make_shared<int>(1);
  std::weak_ptr<int> seen = captured;
  bool was_released = false;

  one->enqueue("hold", {}, [captured = std::move(captured)] {});
  one->enqueue("look", {}, [&] { was_released = seen.expired(); });

  ASSERT_TRUE(one->synchronize(60s));
  EXPECT_TRUE(was_released);
}

TEST_F(HostDevice, AnEventMayBeWaitedForByTheHost) {
  auto one = stream("one");
  auto done = device_->create_event().value();
  int value = 0;

  one->enqueue("write", {}, [&value] { value = 1; });
  one->record(done.get());

  ASSERT_TRUE(done->wait(std::chrono::nanoseconds::max()));
  EXPECT_EQ(value, 1);
}

TEST_F(HostDevice, TwoStreamsPassingATokenNeverRunTogether) {
  auto ping = stream("ping");
  auto pong = stream("pong");
  std::vector<int> order;
  std::vector<Event> events;
  for (int i = 0; i < 400; ++i) {
    auto& self = i % 2 == 0 ? ping : pong;
    if (i > 0) self->wait(events.back().get());
    self->enqueue("turn", {}, [&order, i] { order.push_back(i); });
    events.push_back(device_->create_event().value());
    self->record(events.back().get());
  }

  ASSERT_TRUE(events.back()->wait(60s));

  ASSERT_EQ(order.size(), 400U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  ASSERT_TRUE(ping->synchronize(60s));
  ASSERT_TRUE(pong->synchronize(60s));
}

}  // namespace
}  // namespace troupe::gpu
