#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/errors.hpp"
#include "gpu/collective/nccl/nccl_group.hpp"
#include "tests/gpu/at_once.hpp"
#include "tests/gpu/collective/company.hpp"
#include "tests/nccl_emulation/emulated_member.hpp"
#include "tests/support/rendezvous_memory.hpp"

namespace troupe::gpu {

using namespace std::chrono_literals;
using GroupResult = core::Result<std::unique_ptr<Group>>;

/// Members with the emulated NCCL, of whom things go wrong. Each has one stream.
class NcclScene : public ::testing::Test {
 protected:
  struct Member {
    EmulatedNcclDevice emulated;
    std::unique_ptr<FakeNccl::Process> process;
    std::unique_ptr<NcclBackend> backend;
    Stream stream;
  };

  void begin(int size, NcclOptions options = {}, FakeNcclOptions fake_options = {}) {
    fake = std::make_unique<FakeNccl>(fake_options);
    for (int i = 0; i < size; ++i) add_member(options);
  }
  void add_member(const NcclOptions& options, int version = 22809) {
    Member member{open_emulated_nccl_device({}, gpu_index), nullptr, nullptr, nullptr};
    member.process = std::make_unique<FakeNccl::Process>(
        fake->start_process(member.emulated.run_on_stream, member.emulated.memory));
    member.backend =
        std::make_unique<NcclBackend>(make_nccl_library(member.process->api(version)).value(),
                                      *member.emulated.device, member.emulated.port, rendezvous, options);
    member.stream = member.emulated.device->create_stream({.name = "test"}).value();
    members.push_back(std::move(member));
  }

  GroupOptions options_of(std::size_t member, const std::string& name, std::uint64_t epoch = 1) const {
    GroupOptions options{.job = "scene", .epoch = {epoch}, .name = name, .members = {}, .self = {}};
    for (std::size_t i = 0; i < members.size(); ++i) {
      options.members.push_back({static_cast<std::int32_t>(i)});
    }
    options.self = options.members[member];
    return options;
  }

  /// What create_group() says to each of the first `count` members, who call it at once.
  std::vector<GroupResult> try_to_create(const std::string& name, std::size_t count, std::uint64_t epoch = 1,
                                         std::chrono::nanoseconds deadline = 60s) {
    std::vector<std::unique_ptr<GroupResult>> made(count);
    at_once(count, [&](std::size_t i) {
      GroupOptions options = options_of(i, name, epoch);
      options.deadline = deadline;
      members[i].backend->expect(name, expected_of ? expected_of(static_cast<int>(i)) : expected);
      made[i] = std::make_unique<GroupResult>(members[i].backend->create_group(std::move(options)));
    });
    std::vector<GroupResult> results;
    for (auto& each : made) results.push_back(std::move(*each));
    return results;
  }
  std::vector<std::unique_ptr<Group>> create(const std::string& name, std::uint64_t epoch = 1) {
    std::vector<std::unique_ptr<Group>> groups;
    for (auto& each : try_to_create(name, members.size(), epoch)) groups.push_back(std::move(each).value());
    return groups;
  }

  std::shared_ptr<OperationStatus> post(Group& group, Operation operation) {
    const auto member = static_cast<std::size_t>(group.index());
    auto status = group.post(std::move(operation), members[member].stream.get());
    CHECK(status.has_value(), "a correct operation is accepted");
    return *status;
  }
  void settle() {
    for (const Member& member : members) {
      CHECK(member.stream->synchronize(60s).has_value(), "streams empty within a minute");
    }
  }
  /// Its name in errors.
  const std::string& device() const { return members[0].emulated.port.name; }
  /// Waits until `condition` holds, which others bring about.
  template <class Condition>
  static void await(Condition condition) {
    const auto give_up = std::chrono::steady_clock::now() + 60s;
    while (!condition()) {
      CHECK(std::chrono::steady_clock::now() < give_up, "it happens within a minute");
      std::this_thread::yield();
    }
  }
  void expect_nothing_left() {
    for (const Member& member : members) EXPECT_TRUE(member.backend->wait_for_disposals());
    EXPECT_EQ(fake->live_communicators(), 0U);
    EXPECT_EQ(fake->live_registrations(), 0U);
    EXPECT_THAT(fake->violations(), ::testing::IsEmpty());
  }

  std::unique_ptr<FakeNccl> fake;
  MemoryRendezvous rendezvous;
  std::vector<Member> members;
  int gpu_index = 0;  ///< of the members to come
  // What is expected of groups to come: of all members, or of each.
  std::vector<ExpectedOperation> expected;
  std::function<std::vector<ExpectedOperation>(int self)> expected_of;
};

}  // namespace troupe::gpu
