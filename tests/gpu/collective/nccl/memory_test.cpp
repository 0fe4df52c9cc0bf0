// Memory of NCCL's own, and what members register of it.
#include <algorithm>
#include <future>
#include <mutex>

#include "core/errors.hpp"
#include "gpu/collective/operations.hpp"
#include "gpu/kernels.hpp"
#include "tests/gpu/collective/nccl/scene.hpp"
#include "tests/gpu/collective/reference.hpp"

namespace troupe::gpu {
namespace {

using core::DType;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kBytes = 4096;

class NcclMemoryScene : public NcclScene {
 protected:
  NcclOptions registering() {
    NcclOptions options;
    options.register_memory = true;
    options.log = [this](std::string_view line) {
      std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    };
    return options;
  }
  std::vector<std::string> lines() {
    std::lock_guard lock(mutex_);
    return lines_;
  }

  Buffer allocate(std::size_t member, std::size_t bytes = kBytes) {
    return members[member].backend->allocate(*members[member].emulated.device, bytes).value();
  }
  std::vector<Buffer> allocate_for_all(std::size_t bytes = kBytes) {
    std::vector<Buffer> buffers;
    for (std::size_t i = 0; i < members.size(); ++i) buffers.push_back(allocate(i, bytes));
    return buffers;
  }

  /// What use_memory() says to the members, who call it at once.
  std::vector<core::Result<bool>> try_to_use(const std::vector<std::unique_ptr<Group>>& groups,
                                             const std::vector<Buffer>& buffers) {
    std::vector<core::Result<bool>> results(groups.size(), false);
    at_once(groups.size(), [&](std::size_t i) {
      const BufferView whole = buffers[i].view();
      // Also parts of one range, and nothing.
      const BufferView views[] = {whole.subview(0, whole.bytes / 2), whole.subview(whole.bytes / 2, 8), {}};
      results[i] = groups[i]->use_memory(views);
    });
    return results;
  }
  std::vector<bool> use(const std::vector<std::unique_ptr<Group>>& groups,
                        const std::vector<Buffer>& buffers) {
    std::vector<bool> used;
    for (const auto& each : try_to_use(groups, buffers)) used.push_back(each.value());
    return used;
  }

  void write(std::size_t member, const Bytes& bytes, BufferView destination) {
    const Buffer staging = members[member].emulated.device->allocate_staging(bytes.size()).value();
    std::ranges::copy(bytes, staging.view().data);
    copy(staging.view(), destination, members[member].stream.get());
    CHECK(members[member].stream->synchronize(60s).has_value(), "a copy ends");
  }
  Bytes read(std::size_t member, BufferView source) {
    const Buffer staging = members[member].emulated.device->allocate_staging(source.bytes).value();
    copy(source, staging.view(), members[member].stream.get());
    CHECK(members[member].stream->synchronize(60s).has_value(), "a copy ends");
    return Bytes(staging.view().data, staging.view().data + source.bytes);
  }

  /// An all-reduction of every member's range in place.
  std::vector<std::string> reduce(const std::vector<std::unique_ptr<Group>>& groups,
                                  const std::vector<Buffer>& buffers) {
    std::vector<std::shared_ptr<OperationStatus>> statuses;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      statuses.push_back(
          post(*groups[i],
               {.kind = OperationKind::all_reduce, .input = buffers[i].view(), .output = buffers[i].view()}));
    }
    settle();
    std::vector<std::string> outcomes;
    for (const auto& status : statuses) outcomes.push_back(outcome_of(*status) + message_of(*status));
    return outcomes;
  }

  void expect_nothing_left_at_all() {
    expect_nothing_left();
    EXPECT_EQ(fake->live_ranges(), 0U);
  }

 private:
  std::mutex mutex_;  // guards lines_
  std::vector<std::string> lines_;
};

TEST_F(NcclMemoryScene, GivesZerosThatAreAlignedAndTakesThemBack) {
  begin(1, registering());
  {
    const Buffer buffer = allocate(0, 1000);
    EXPECT_EQ(fake->live_ranges(), 1U);
    EXPECT_EQ(buffer.bytes(), 1000U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.view().data) % 256, 0U);
    EXPECT_EQ(read(0, buffer.view()), Bytes(1000));
    EXPECT_EQ(allocate(0, 0).bytes(), 0U);
  }
  expect_nothing_left_at_all();
}

TEST_F(NcclMemoryScene, IsTheDevicesWithoutTheOptionOrForOthers) {
  begin(1);
  add_member(registering());
  const Buffer plain = allocate(0);
  EmulatedNcclDevice other = open_emulated_nccl_device();
  const Buffer of_other = members[1].backend->allocate(*other.device, kBytes).value();
  EXPECT_EQ(fake->live_ranges(), 0U);
  EXPECT_EQ(read(0, plain.view()), Bytes(kBytes));
}

TEST_F(NcclMemoryScene, IsRegisteredOnceByAllMembersAndUsed) {
  begin(3, registering());
  {
    const auto buffers = allocate_for_all();
    auto groups = create("dp");
    EXPECT_THAT(use(groups, buffers), ElementsAre(true, true, true));
    EXPECT_THAT(use(groups, buffers), ElementsAre(true, true, true));
    EXPECT_EQ(fake->live_registrations(), 3U);
    EXPECT_EQ(fake->registered_operations(), 0U);
    EXPECT_THAT(reduce(groups, buffers), Each(std::string("ok")));
    EXPECT_EQ(fake->registered_operations(), 1U);
    groups.clear();
    expect_nothing_left();
    EXPECT_EQ(fake->live_ranges(), 3U) << "ranges stay with their buffers";
  }
  expect_nothing_left_at_all();
  EXPECT_THAT(lines(), IsEmpty());
}

constexpr std::size_t kElements = 96;
constexpr std::size_t kMembers = 3;

/// How the elements are divided; member `from` has `count(from, to)` for member `to`.
std::size_t count(bool even, std::size_t from, std::size_t to) {
  return even ? kElements / kMembers : (from + 2 * to) % 3 * 16;
}

/// Reads the first half of `memory`, and writes the second.
Operation operation_of(OperationKind kind, bool even, std::size_t member, BufferView memory) {
  std::vector<std::size_t> to_others;
  std::vector<std::size_t> from_others;
  std::vector<std::size_t> parts;
  for (std::size_t i = 0; i < kMembers; ++i) {
    to_others.push_back(count(even, member, i));
    from_others.push_back(count(even, i, member));
    parts.push_back(count(even, 0, i) * 2);
  }
  const auto view = [&](std::size_t offset, std::size_t elements) {
    return memory.subview(offset * sizeof(std::uint16_t), elements * sizeof(std::uint16_t));
  };
  Operation operation{.kind = kind, .dtype = DType::bf16};
  operation.input = view(0, kElements);
  operation.output = view(kElements, kElements);
  if (kind == OperationKind::reduce_scatter) {
    operation.input = view(0, offsets_of(parts).back());
    operation.output = view(2 * kElements, parts[member]);
    operation.output_counts = parts;
  } else if (kind == OperationKind::all_gather) {
    operation.input = view(0, parts[member]);
    operation.output = view(2 * kElements, offsets_of(parts).back());
    operation.input_counts = parts;
  } else if (kind == OperationKind::all_to_all) {
    operation.input = view(0, offsets_of(to_others).back());
    operation.output = view(kElements, offsets_of(from_others).back());
    operation.input_counts = to_others;
    operation.output_counts = from_others;
  } else if (kind == OperationKind::broadcast && member == 0) {
    operation.output = {};
  } else if (kind == OperationKind::broadcast) {
    operation.input = {};
  }
  return operation;
}

// Covers adapter-5.
TEST_F(NcclMemoryScene, ChangesNoBitOfAnyResult) {
  begin(kMembers, registering());
  std::mt19937_64 random(7);
  std::uint64_t epoch = 0;
  for (const OperationKind kind :
       {OperationKind::all_reduce, OperationKind::reduce_scatter, OperationKind::all_gather,
        OperationKind::broadcast, OperationKind::all_to_all}) {
    for (const bool even : {true, false}) {
      std::vector<Bytes> contents;
      for (std::size_t i = 0; i < kMembers; ++i)
        contents.push_back(random_elements(DType::bf16, 4 * kElements, random));
      std::vector<std::vector<Bytes>> results;
      for (const bool registered : {false, true}) {
        const auto buffers = allocate_for_all(contents[0].size());
        auto groups = create("dp", ++epoch);
        ASSERT_THAT(registered ? use(groups, buffers) : std::vector<bool>(kMembers, true), Each(true));
        const std::size_t before = fake->registered_operations();
        for (std::size_t i = 0; i < kMembers; ++i) write(i, contents[i], buffers[i].view());
        for (std::size_t i = 0; i < kMembers; ++i)
          post(*groups[i], operation_of(kind, even, i, buffers[i].view()));
        settle();
        EXPECT_EQ(fake->registered_operations() > before, registered) << name_of(kind);
        auto& result = results.emplace_back();
        for (std::size_t i = 0; i < kMembers; ++i) result.push_back(read(i, buffers[i].view()));
        groups.clear();
        expect_nothing_left();
      }
      EXPECT_EQ(results[0], results[1]) << name_of(kind);
      EXPECT_NE(results[0], contents) << name_of(kind);
    }
  }
}

TEST_F(NcclMemoryScene, OutlivesItsBufferWhileAGroupHasItRegistered) {
  begin(2, registering());
  auto groups = create("dp");
  {
    const auto buffers = allocate_for_all();
    EXPECT_THAT(use(groups, buffers), Each(true));
  }
  EXPECT_EQ(fake->live_ranges(), 2U);
  groups.clear();
  expect_nothing_left_at_all();
}

TEST_F(NcclMemoryScene, OutlivesTheBackEndWithItsBuffer) {
  begin(1, registering());
  {
    const Buffer buffer = allocate(0);
    members[0].backend.reset();
    EXPECT_EQ(fake->live_ranges(), 1U);
  }
  EXPECT_EQ(fake->live_ranges(), 0U);
  EXPECT_THAT(fake->violations(), IsEmpty());
}

TEST_F(NcclMemoryScene, OfAHundredEpochsLeavesNothingBehind) {
  begin(2, registering());
  {
    const auto lasting = allocate_for_all();
    for (std::uint64_t epoch = 1; epoch <= 100; ++epoch) {
      const auto passing = allocate_for_all();
      auto groups = create("dp", epoch);
      ASSERT_THAT(use(groups, lasting), Each(true));
      ASSERT_THAT(use(groups, passing), Each(true));
      ASSERT_EQ(fake->live_registrations(), 4U);
      ASSERT_THAT(reduce(groups, lasting), Each(std::string("ok")));
      if (epoch % 2 == 0) groups[0]->abort({core::Errc::aborted, "the epoch ended"});
      if (epoch % 4 == 0) groups[1]->abort({core::Errc::aborted, "the epoch ended"});
      groups.clear();
      expect_nothing_left();
      ASSERT_EQ(fake->live_ranges(), 4U);
    }
    EXPECT_EQ(fake->registered_operations(), 100U);
  }
  expect_nothing_left_at_all();
}

TEST_F(NcclMemoryScene, RefusedToOneMemberIsRegisteredByNone) {
  begin(2, registering());
  {
    members[1].process->refuse_memory(NcclStatus::unhandled_cuda_error);
    const auto buffers = allocate_for_all();
    EXPECT_EQ(fake->live_ranges(), 1U);
    EXPECT_EQ(read(1, buffers[1].view()), Bytes(kBytes));
    EXPECT_THAT(lines(), ElementsAre(HasSubstr(device() + ": ncclMemAlloc of 4096 bytes ended in "
                                                          "ncclUnhandledCudaError: the fake's last words; "
                                                          "the device's own memory takes its place")));

    auto groups = create("dp");
    EXPECT_THAT(use(groups, buffers), Each(false));
    EXPECT_EQ(fake->live_registrations(), 0U);
    EXPECT_THAT(reduce(groups, buffers), Each(std::string("ok")));
    EXPECT_THAT(lines(),
                ::testing::IsSupersetOf({HasSubstr("group 'dp' (epoch 1), rank 0 on " + device() +
                                                   ": no memory is registered: rank 1 has none that can be"),
                                         HasSubstr("2048 bytes of what it uses are not from ncclMemAlloc")}));
    groups.clear();
  }
  expect_nothing_left_at_all();
}

TEST_F(NcclMemoryScene, ThatOneMemberCannotRegisterIsRegisteredByNone) {
  begin(3, registering());
  {
    const auto buffers = allocate_for_all();
    const std::pair<NcclStatus, const char*> refusals[] = {
        {NcclStatus::unhandled_cuda_error, "ncclCommRegister ended in ncclUnhandledCudaError"},
        {NcclStatus::invalid_argument, "ncclCommRegister ended in ncclInvalidArgument"},
        {NcclStatus::success, "NCCL does not register its memory"}};
    std::uint64_t epoch = 0;
    for (const auto& [status, reason] : refusals) {
      members[1].process->refuse_registrations(status);
      auto groups = create("dp", ++epoch);
      EXPECT_THAT(use(groups, buffers), Each(false));
      EXPECT_EQ(fake->live_registrations(), 0U);
      EXPECT_THAT(reduce(groups, buffers), Each(std::string("ok")));
      EXPECT_THAT(lines(), ::testing::Contains(HasSubstr(reason)));
      groups.clear();
      expect_nothing_left();
    }
    EXPECT_EQ(lines().size(), 9U) << "a line a member and epoch";
  }
  expect_nothing_left_at_all();
}

TEST_F(NcclMemoryScene, LaterRefusalEndsEarlierRegistrations) {
  begin(2, registering());
  const auto buffers = allocate_for_all();
  std::vector<Buffer> plain;
  for (const Member& member : members) plain.push_back(member.emulated.device->allocate(kBytes).value());
  auto groups = create("dp");
  EXPECT_THAT(use(groups, buffers), Each(true));
  EXPECT_THAT(use(groups, plain), Each(false));
  EXPECT_EQ(fake->live_registrations(), 0U);
  EXPECT_THAT(reduce(groups, buffers), Each(std::string("ok")));
  groups.clear();
  expect_nothing_left();
}

TEST_F(NcclMemoryScene, IsNotAskedForOfAnOldLibrary) {
  begin(0);
  for (int i = 0; i < 2; ++i) add_member(registering(), 21805);
  EXPECT_THAT(lines(),
              Each(device() + ": no memory is registered: NCCL 2.18.5 cannot; install 2.19 or newer"));
  EXPECT_EQ(lines().size(), 2U);
  {
    const auto buffers = allocate_for_all();
    auto groups = create("dp");
    EXPECT_THAT(use(groups, buffers), Each(false));
    EXPECT_THAT(reduce(groups, buffers), Each(std::string("ok")));
  }
  expect_nothing_left_at_all();
}

TEST_F(NcclMemoryScene, OfOneMemberNeedsNoRegistration) {
  begin(1, registering());
  const auto buffers = allocate_for_all();
  auto groups = create("alone");
  EXPECT_THAT(use(groups, buffers), Each(false));
  EXPECT_THAT(lines(), IsEmpty());
}

TEST_F(NcclMemoryScene, IsNotRegisteredByAPartOfTheMembers) {
  begin(1);
  add_member(registering());
  const auto made = try_to_create("dp", 2, 1, 50ms);

  for (const auto& each : made) ASSERT_FALSE(each.has_value());
  EXPECT_EQ(made[0].error().code, core::Errc::timeout);
  EXPECT_EQ(made[1].error().code, core::Errc::mismatch);
  EXPECT_THAT(made[1].error().message,
              HasSubstr("rank 1 has NCCL 2.28.9 with registered memory, but rank 0 has 2.28.9"));
}

TEST_F(NcclMemoryScene, MayBeRegisteredWhileAnotherGroupIsPostedTo) {
  begin(2, registering(), {.has_room_for_all = true});
  constexpr std::size_t kRounds = 50;
  std::vector<std::vector<Buffer>> buffers;
  for (std::size_t i = 0; i < kRounds; ++i) buffers.push_back(allocate_for_all());
  auto first = create("dp");
  auto second = create("tp");
  std::vector<std::jthread> posting;
  for (const auto& group : first) {
    posting.emplace_back([&, &group = *group] {
      for (std::size_t i = 0; i < 4 * kRounds; ++i) post(group, {});
    });
  }
  for (const auto& each : buffers) EXPECT_THAT(use(second, each), Each(true));
  posting.clear();
  settle();

  EXPECT_EQ(fake->live_registrations(), 2 * kRounds);
  first.clear();
  second.clear();
  expect_nothing_left();
}

TEST_F(NcclMemoryScene, EndsTheGroupWhenAMemberDiesEarly) {
  begin(2, registering(), {.tells_peers = true});
  {
    const auto buffers = allocate_for_all();
    auto groups = create("dp");
    const BufferView view = buffers[0].view();
    HostLine line = HostLine::current().branch();
    auto waiting = std::async(std::launch::async, [&] {
      const HostScope scope(line, {});
      return groups[0]->use_memory({&view, 1});
    });
    await([&] { return fake->live_registrations() == 1; });
    members[1].process->die();

    const auto result = waiting.get();
    HostLine::current().join(line.clock());
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, core::Errc::peer_lost) << result.error().message;
    EXPECT_THAT(message_of(*post(*groups[0], {})), result.error().message);
  }
  settle();
  expect_nothing_left_at_all();
}

TEST_F(NcclMemoryScene, StaysWhileAnAbortIsStuck) {
  NcclOptions options = registering();
  options.abort_budget = 30ms;
  begin(2, options);
  auto groups = create("dp");
  {
    const auto buffers = allocate_for_all();
    EXPECT_THAT(use(groups, buffers), Each(true));
    members[0].process->block_aborts();
    groups[0]->abort({core::Errc::aborted, "the epoch ended"});
    groups.clear();
  }
  EXPECT_TRUE(members[1].backend->wait_for_disposals());
  EXPECT_FALSE(members[0].backend->wait_for_disposals());
  EXPECT_EQ(fake->live_ranges(), 1U);

  members[0].process->release_aborts();
  await([&] { return members[0].backend->wait_for_disposals(); });
  expect_nothing_left_at_all();
}

}  // namespace
}  // namespace troupe::gpu
