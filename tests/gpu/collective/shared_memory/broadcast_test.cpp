// What a root leaves to the others, and results that go past the caches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/collective/company.hpp"
#include "tests/gpu/collective/reference.hpp"
#include "tests/gpu/collective/watchdog.hpp"

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;

class SharedMemoryBroadcast : public ::testing::Test {
 private:
  Watchdog watchdog_;

 protected:
  static Operation give(const Bytes& bytes) {
    return {.kind = OperationKind::broadcast, .dtype = core::DType::u8, .input = view_of(bytes)};
  }
  static Operation take(Bytes& bytes) {
    return {.kind = OperationKind::broadcast, .dtype = core::DType::u8, .output = view_of(bytes)};
  }
  /// Whether what the root has posted ends before anybody else posts.
  bool root_is_done() { return stage.streams[0]->synchronize(60s).has_value(); }

  Stage stage{BackendKind::shared_memory, 3};
  std::mt19937_64 random{20261128};
};

TEST_F(SharedMemoryBroadcast, EndsForItsRootBeforeOthersCome) {
  Bytes source = random_elements(core::DType::u8, 4097, random);
  const Bytes sent = source;
  const auto given = stage.post(0, give(source));
  ASSERT_TRUE(root_is_done());
  ASSERT_EQ(outcome_of(*given), "ok") << message_of(*given);
  source.assign(source.size(), std::byte{0});

  std::vector<Bytes> received(2, Bytes(sent.size()));
  for (int i = 1; i < 3; ++i) stage.post(i, take(received[static_cast<std::size_t>(i) - 1]));
  stage.settle();

  EXPECT_THAT(received, ::testing::Each(sent));
}

TEST_F(SharedMemoryBroadcast, TheNextWaitsUntilOthersHaveTakenIt) {
  constexpr std::size_t kCount = 5;
  std::vector<Bytes> sources;
  for (std::size_t i = 0; i < kCount; ++i)
    sources.push_back(random_elements(core::DType::u8, 700001, random));
  std::vector<std::vector<Bytes>> received(2, std::vector<Bytes>(kCount, Bytes(sources[0].size())));

  for (const Bytes& source : sources) stage.post(0, give(source));
  for (std::size_t i = 0; i < kCount; ++i) {
    stage.post(2, take(received[1][i]));
    ASSERT_FALSE(stage.streams[2]->synchronize(5ms).has_value()) << "member 1 has not come yet";
    stage.post(1, take(received[0][i]));
    ASSERT_TRUE(stage.streams[2]->synchronize(60s).has_value());
  }
  stage.settle();

  EXPECT_THAT(received, ::testing::Each(sources));
}

TEST_F(SharedMemoryBroadcast, OutlivesTheRootsGroup) {
  const Bytes source = random_elements(core::DType::u8, 1000, random);
  stage.post(0, give(source));
  ASSERT_TRUE(root_is_done());
  stage.groups[0].reset();

  std::vector<Bytes> received(2, Bytes(source.size()));
  std::vector<std::shared_ptr<OperationStatus>> taken;
  for (int i = 1; i < 3; ++i) taken.push_back(stage.post(i, take(received[static_cast<std::size_t>(i) - 1])));
  stage.settle();

  for (const auto& status : taken) EXPECT_EQ(outcome_of(*status), "ok") << message_of(*status);
  EXPECT_THAT(received, ::testing::Each(source));
}

TEST_F(SharedMemoryBroadcast, TheRootHearsOfAMismatchInItsNext) {
  const Bytes source = random_elements(core::DType::u8, 64, random);
  Bytes other(65);
  const auto given = stage.post(0, give(source));
  ASSERT_TRUE(root_is_done());
  for (int i = 1; i < 3; ++i) stage.post(i, take(other));
  const auto next = stage.post(0, give(source));
  const auto last = stage.post(0, {});
  stage.settle();

  EXPECT_EQ(outcome_of(*given), "ok");
  EXPECT_EQ(outcome_of(*next), "mismatch");
  EXPECT_THAT(message_of(*next), ::testing::HasSubstr("posted elements 65, but rank 10 posted 64"));
  EXPECT_EQ(message_of(*last), message_of(*next));
}

TEST_F(SharedMemoryBroadcast, ResultsOfManyBytesAreWhole) {
  const Bytes source = random_elements(core::DType::u8, (std::size_t{17} << 20) + 13, random);
  std::vector<Bytes> received(2, Bytes(source.size()));
  stage.post(0, give(source));
  for (int i = 1; i < 3; ++i) stage.post(i, take(received[static_cast<std::size_t>(i) - 1]));
  stage.settle();

  for (const Bytes& bytes : received) EXPECT_TRUE(bytes == source);
}

}  // namespace
}  // namespace troupe::gpu
