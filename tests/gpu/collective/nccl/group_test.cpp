// How groups over NCCL come up, stand beside each other and go.
#include <filesystem>

#include "tests/gpu/collective/nccl/scene.hpp"

namespace troupe::gpu {
namespace {

using ::testing::HasSubstr;

class NcclGroups : public NcclScene {
 protected:
  static NcclOrder order_of(const std::unique_ptr<Group>& group) {
    return dynamic_cast<NcclGroup&>(*group).order();
  }
};

TEST_F(NcclGroups, AskForCommunicatorsThatCanBeAborted) {
  NcclOptions options;
  options.min_ctas = 1;
  options.max_ctas = 8;
  begin(2, options);
  const auto groups = create("dp");

  const FakeNcclSeen seen = members[1].process->last_configuration();
  EXPECT_EQ(seen.blocking, 0);
  EXPECT_EQ(seen.split_share, 0);
  EXPECT_EQ(seen.name, "dp");
  EXPECT_EQ(seen.min_ctas, 1);
  EXPECT_EQ(seen.max_ctas, 8);
}

// Covers buffer-7.
TEST_F(NcclGroups, OfOneMemberHaveNoCommunicator) {
  begin(1);
  auto groups = create("alone");
  EXPECT_EQ(fake->live_communicators(), 0U);

  std::vector<float> input{1, 2, 3};
  std::vector<float> output(3);
  const Operation operation{.kind = OperationKind::all_reduce,
                            .reduce = ReduceOp::average,
                            .input = view_of(std::span<const float>(input)),
                            .output = view_of(std::span(output))};
  const auto status = post(*groups[0], operation);
  settle();
  EXPECT_EQ(outcome_of(*status), "ok");
  EXPECT_EQ(output, input);

  groups[0]->abort({core::Errc::aborted, "the epoch ended"});
  EXPECT_EQ(message_of(*post(*groups[0], operation)), "the epoch ended");
}

TEST_F(NcclGroups, OfAHundredEpochsLeaveNothingBehind) {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  };
  begin(2);
  std::ptrdiff_t before = 0;
  for (std::uint64_t epoch = 1; epoch <= 100; ++epoch) {
    auto groups = create("dp", epoch);
    const auto first = post(*groups[0], {});
    const auto second = post(*groups[1], {});
    settle();
    ASSERT_EQ(outcome_of(*first) + outcome_of(*second), "okok");
    if (epoch % 2 == 0) groups[0]->abort({core::Errc::aborted, "the epoch ended"});
    groups.clear();
    expect_nothing_left();
    if (epoch == 1) before = threads();
  }
  EXPECT_EQ(threads(), before);
}

TEST_F(NcclGroups, OfOneDeviceTakePostsOfTwoThreads) {
  begin(2, {}, {.has_room_for_all = true});
  std::vector<std::vector<std::unique_ptr<Group>>> groups;
  groups.push_back(create("dp"));
  groups.push_back(create("tp"));
  std::vector<Stream> streams;
  for (int i = 0; i < 4; ++i) {
    streams.push_back(members[static_cast<std::size_t>(i % 2)].emulated.device->create_stream({}).value());
  }
  std::vector<std::shared_ptr<OperationStatus>> statuses(4 * 50);
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (std::size_t k = 0; k < 50; ++k) {
        statuses[i * 50 + k] = groups[i / 2][i % 2]->post({}, streams[i].get()).value();
      }
    });
  }
  threads.clear();
  for (const Stream& stream : streams) ASSERT_TRUE(stream->synchronize(60s).has_value());

  for (const auto& status : statuses) ASSERT_EQ(outcome_of(*status), "ok") << message_of(*status);
  groups.clear();
  expect_nothing_left();
}

TEST_F(NcclGroups, AnAbortedOneLeavesTheOtherAlone) {
  begin(2);
  auto first = create("dp");
  auto second = create("tp");
  for (const auto& group : first) group->abort({core::Errc::aborted, "the epoch ended"});
  const auto one = post(*second[0], {});
  const auto two = post(*second[1], {});
  settle();

  EXPECT_EQ(outcome_of(*one) + outcome_of(*two), "okok");
}

TEST_F(NcclGroups, KeepADigestOfTheOrderOfOperations) {
  begin(2);
  auto groups = create("dp");
  EXPECT_EQ(order_of(groups[0]), NcclOrder{}) << "what warms up does not count";
  std::vector<float> values(2);
  const auto reduce = [&](ReduceOp op) {
    return Operation{.kind = OperationKind::all_reduce,
                     .reduce = op,
                     .input = view_of(std::span<const float>(values)),
                     .output = view_of(std::span(values))};
  };
  for (const auto& group : groups) post(*group, {});
  for (const auto& group : groups) post(*group, reduce(ReduceOp::sum));
  const NcclOrder common = order_of(groups[0]);
  EXPECT_EQ(common.operations, 2U);
  EXPECT_EQ(order_of(groups[1]), common);

  post(*groups[0], reduce(ReduceOp::max));
  post(*groups[1], reduce(ReduceOp::min));
  EXPECT_NE(order_of(groups[0]), order_of(groups[1]));
}

TEST_F(NcclGroups, ConnectForNothingButWhatIsExpectedOfThem) {
  begin(3);
  create("alone");
  EXPECT_THAT(members[0].process->connections(), ::testing::ElementsAre("alone: ncclAllReduce of size 1"))
      << "a barrier, and nothing between pairs";
}

TEST_F(NcclGroups, ConnectForExpectedUseSoThatPostingConnectsNothing) {
  begin(3);
  const auto f32 = core::DType::f32;
  expected = {{OperationKind::all_gather, f32, {100, 100, 100}},
              {OperationKind::all_gather, f32, {7, 0, 9}},
              {OperationKind::reduce_scatter, f32, {50, 50, 50}},
              {OperationKind::reduce_scatter, f32, {0, 3, 5}},
              {OperationKind::broadcast, f32, {33}, 1},
              {OperationKind::all_reduce, f32, {1000}},
              {OperationKind::all_to_all, f32, {10}}};
  auto groups = create("dp");
  const auto before = members[1].process->connections();
  std::vector<std::vector<float>> values(3, std::vector<float>(2000));
  const auto part = [&](std::size_t member, std::size_t first, std::size_t count) {
    return view_of(std::span(values[member]).subspan(first, count));
  };
  std::vector<std::shared_ptr<OperationStatus>> statuses;
  for (std::size_t i = 0; i < 3; ++i) {
    const std::size_t uneven[] = {7, 0, 9};
    const Operation operations[] = {
        {.kind = OperationKind::all_gather, .input = part(i, 0, 100), .output = part(i, 1000, 300)},
        {.kind = OperationKind::all_gather,
         .input = part(i, 0, uneven[i]),
         .output = part(i, 1000, 16),
         .input_counts = {7, 0, 9}},
        {.kind = OperationKind::reduce_scatter, .input = part(i, 0, 150), .output = part(i, 1000, 50)},
        {.kind = OperationKind::all_reduce, .input = part(i, 0, 1000), .output = part(i, 1000, 1000)},
        {.kind = OperationKind::all_to_all, .input = part(i, 0, 30), .output = part(i, 1000, 30)}};
    for (const auto& operation : operations) statuses.push_back(post(*groups[i], operation));
  }
  settle();

  for (const auto& status : statuses) EXPECT_EQ(outcome_of(*status), "ok") << message_of(*status);
  EXPECT_EQ(members[1].process->connections(), before);
  groups.clear();
  expect_nothing_left();
}

TEST_F(NcclGroups, ConnectMessagesOfNeighboursTogether) {
  begin(4);
  expected_of = [](int self) {
    std::vector<ExpectedOperation> ring;
    for (const int peer : {(self + 1) % 4, (self + 3) % 4}) {
      ring.push_back({OperationKind::send, core::DType::f32, {1}, peer});
      ring.push_back({OperationKind::receive, core::DType::f32, {1}, peer});
    }
    return ring;
  };
  const auto groups = create("pp");
  EXPECT_THAT(
      members[0].process->connections(),
      ::testing::UnorderedElementsAre("pp: ncclAllReduce of size 1", "pp: ncclSend to 1", "pp: ncclSend to 3",
                                      "pp: ncclRecv from 1", "pp: ncclRecv from 3"));
}

TEST_F(NcclGroups, OfMembersWithDifferentVersionsAreRefused) {
  begin(1);
  add_member({}, 22705);
  const auto made = try_to_create("dp", 2, 1, 50ms);

  for (const auto& each : made) ASSERT_FALSE(each.has_value());
  EXPECT_EQ(made[0].error().code, core::Errc::timeout);
  EXPECT_EQ(made[1].error().code, core::Errc::mismatch);
  EXPECT_THAT(made[1].error().message, HasSubstr("rank 1 has NCCL 2.27.5, but rank 0 has 2.28.9"));
}

TEST_F(NcclGroups, TakeARendezvousThatHoldsSomethingElseForDamaged) {
  begin(2);
  ASSERT_TRUE(rendezvous.set("scene/1/dp/nccl", "2.28.9 abc").has_value());
  const auto made = members[1].backend->create_group(options_of(1, "dp"));

  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, core::Errc::corrupt);
}

}  // namespace
}  // namespace troupe::gpu
