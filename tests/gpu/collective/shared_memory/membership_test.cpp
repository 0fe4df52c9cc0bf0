// Which ranks belong to a shared-memory group, and what the others see when that changes.
#include <fmt/format.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>

#include "gpu/collective/shared_memory/arena.hpp"
#include "gpu/collective/shared_memory/peer_watch.hpp"
#include "gpu/collective/shared_memory/shared_memory_backend.hpp"
#include "gpu/host/host_device.hpp"
#include "tests/gpu/collective/company.hpp"
#include "tests/gpu/collective/watchdog.hpp"
#include "tests/support/rendezvous_memory.hpp"

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;

class SharedMemoryMembership : public ::testing::Test {
 private:
  Watchdog watchdog_;
};

TEST_F(SharedMemoryMembership, WhoWaitsForALeftMemberLearnsItsName) {
  Stage stage(BackendKind::shared_memory, 3);
  const auto waiting = stage.post(0, {});
  stage.groups[2].reset();
  stage.settle();

  EXPECT_EQ(outcome_of(*waiting), "peer_lost");
  EXPECT_THAT(message_of(*waiting), ::testing::HasSubstr("rank 12"));
  EXPECT_THAT(message_of(*waiting), ::testing::HasSubstr("left the group"));
}

TEST_F(SharedMemoryMembership, LeavingMemberDoesNotDisturbOthersMessages) {
  Stage stage(BackendKind::shared_memory, 3);
  std::vector<std::byte> sent(1 << 20, std::byte{7});
  std::vector<std::byte> received(sent.size());
  stage.groups[2].reset();

  const auto receive = stage.post(1, {.kind = OperationKind::receive,
                                      .dtype = core::DType::u8,
                                      .output = {received.data(), received.size()},
                                      .peer = 0});
  // The receiver sleeps and looks around meanwhile.
  EXPECT_FALSE(stage.streams[1]->synchronize(20ms).has_value());
  const auto send = stage.post(0, {.kind = OperationKind::send,
                                   .dtype = core::DType::u8,
                                   .input = {sent.data(), sent.size()},
                                   .peer = 1});
  stage.settle();

  EXPECT_EQ(outcome_of(*send), "ok") << message_of(*send);
  EXPECT_EQ(outcome_of(*receive), "ok") << message_of(*receive);
  EXPECT_EQ(received, sent);
}

TEST_F(SharedMemoryMembership, AnAbortOfOneEndsAll) {
  Stage stage(BackendKind::shared_memory, 3);
  const auto one = stage.post(1, {});
  const auto two = stage.post(2, {});
  stage.groups[0]->abort({core::Errc::aborted, "the user said so"});
  stage.settle();

  EXPECT_EQ(message_of(*one), "group 'dp': rank 10 aborted: the user said so");
  EXPECT_EQ(message_of(*two), message_of(*one));
}

TEST_F(SharedMemoryMembership, MembersWithOtherOptionsAreRefusedBeforeTheyMap) {
  MemoryRendezvous rendezvous;
  SharedMemoryBackend first(rendezvous, {.staging_bytes = 64 << 10});
  SharedMemoryBackend second(rendezvous, {.staging_bytes = 128 << 10});
  GroupOptions options{.job = fmt::format("test-{}", getpid()),
                       .epoch = {1},
                       .name = "dp",
                       .members = {{0}, {1}},
                       .self = {0},
                       .deadline = 20ms};

  const auto leader = first.create_group(options);
  options.self = {1};
  const auto other = second.create_group(options);

  ASSERT_FALSE(leader.has_value());
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(leader.error().code, core::Errc::timeout);
  EXPECT_THAT(leader.error().message, ::testing::HasSubstr("no sign of rank 1"));
  EXPECT_EQ(other.error().code, core::Errc::mismatch);
}

TEST_F(SharedMemoryMembership, SmallestStagingGivesEachMemberAPart) {
  MemoryRendezvous rendezvous;
  SharedMemoryBackend backend(rendezvous, {.staging_bytes = 1});
  GroupOptions options{.job = fmt::format("test-{}", getpid()),
                       .epoch = {1},
                       .name = "dp",
                       .members = {{0}, {1}, {2}},
                       .deadline = 10s};
  const auto device = open_host_device();
  const std::vector<float> input{1, 2, 3, 4, 5, 6};
  const auto sum = [&](int self) {
    auto own = options;
    own.self = {self};
    const auto group = backend.create_group(own).value();
    auto stream = (*device)->create_stream({.name = "test"}).value();
    std::vector<float> output(2);
    const auto status = group->post({.kind = OperationKind::reduce_scatter,
                                     .dtype = core::DType::f32,
                                     .input = view_of(input),
                                     .output = view_of(output),
                                     .output_counts = {2, 2, 2}},
                                    stream.get());
    EXPECT_TRUE(stream->synchronize(10s).has_value());
    EXPECT_EQ(outcome_of(*status.value()), "ok");
    return output;
  };

  std::vector<std::future<std::vector<float>>> members;
  for (int self = 0; self < 3; ++self) members.push_back(std::async(std::launch::async, sum, self));

  EXPECT_EQ(members[0].get(), (std::vector<float>{3, 6}));
  EXPECT_EQ(members[1].get(), (std::vector<float>{9, 12}));
  EXPECT_EQ(members[2].get(), (std::vector<float>{15, 18}));
}

TEST_F(SharedMemoryMembership, LastActOfALeavingMemberCounts) {
  MemoryRendezvous rendezvous;
  GroupOptions options{.job = fmt::format("test-{}", getpid()),
                       .epoch = {1},
                       .name = "dp",
                       .members = {{0}, {1}},
                       .self = {1},
                       .deadline = 10s};
  const SharedMemoryOptions sleeping{.spin = 0ns};
  auto leaving =
      std::async(std::launch::async, [&] { return Arena::establish(options, rendezvous, sleeping); });
  auto remaining_options = options;
  remaining_options.self = {0};
  const auto remaining = Arena::establish(remaining_options, rendezvous, sleeping).value();
  leaving.get().value().reset();
  SharedWord& written = remaining->channel(1, 0).written;

  // What it did before it left is seen between the first look at the word and the look at who has left.
  const auto waited = remaining->await(written, 1, OperationDeadline("receive 0", 10s), [&](int peer) {
    written.value.store(1);
    return peer == 1;
  });

  EXPECT_TRUE(waited.has_value()) << waited.error().message;
}

TEST(PeerWatch, TellsAProcessFromALaterNamesake) {
  const auto parent = posix::identify(getppid()).value();
  const posix::ProcessIdentity earlier{parent.pid, parent.start_time - 1};

  EXPECT_THAT(PeerWatch::open(std::vector{parent, earlier}).value().find_dead(), ::testing::ElementsAre(1));
}

}  // namespace
}  // namespace troupe::gpu
