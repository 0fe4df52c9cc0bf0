// Who belongs to a shared-memory group, and what the others see when that changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "gpu/collective/rendezvous_memory.hpp"
#include "gpu/collective/shared_memory/peer_watch.hpp"
#include "gpu/collective/shared_memory/shared_memory_backend.hpp"
#include "tests/gpu/collective/company.hpp"

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;

TEST(SharedMemoryMembership, WhoWaitsForAMemberThatLeftLearnsItsName) {
  Stage stage(BackendKind::shared_memory, 3);
  const auto waiting = stage.post(0, {});
  stage.groups[2].reset();
  stage.settle();

  EXPECT_EQ(outcome_of(*waiting), "peer_lost");
  EXPECT_THAT(message_of(*waiting), ::testing::HasSubstr("rank 12"));
  EXPECT_THAT(message_of(*waiting), ::testing::HasSubstr("left the group"));
}

TEST(SharedMemoryMembership, AMemberThatLeavesDoesNotDisturbMessagesBetweenTheOthers) {
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

TEST(SharedMemoryMembership, AnAbortOfOneEndsAll) {
  Stage stage(BackendKind::shared_memory, 3);
  const auto one = stage.post(1, {});
  const auto two = stage.post(2, {});
  stage.groups[0]->abort({core::Errc::aborted, "the user said so"});
  stage.settle();

  EXPECT_EQ(message_of(*one), "group 'dp': rank 10 aborted: the user said so");
  EXPECT_EQ(message_of(*two), message_of(*one));
}

TEST(SharedMemoryMembership, MembersWithOtherOptionsAreRefusedBeforeTheyMap) {
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

  EXPECT_EQ(leader.error().code, core::Errc::timeout);
  EXPECT_THAT(leader.error().message, ::testing::HasSubstr("no sign of rank 1"));
  EXPECT_EQ(other.error().code, core::Errc::mismatch);
}

TEST(PeerWatch, TellsAProcessFromALaterOneWithItsNumber) {
  const auto parent = identify(getppid()).value();
  const ProcessIdentity earlier{parent.pid, parent.start_time - 1};

  EXPECT_THAT(PeerWatch::open(std::vector{parent, earlier}).value().find_dead(), ::testing::ElementsAre(1));
}

}  // namespace
}  // namespace troupe::gpu
