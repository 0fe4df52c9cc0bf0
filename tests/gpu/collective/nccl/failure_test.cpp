// What members see when NCCL or a peer fails, and what is left afterwards.
#include <future>

#include "tests/gpu/collective/nccl/scene.hpp"

namespace troupe::gpu {
namespace {

using ::testing::HasSubstr;

class NcclFailure : public NcclScene {};

TEST_F(NcclFailure, MissingMemberEndsTheSetUpAtItsDeadline) {
  begin(3);
  const auto made = try_to_create("dp", 2, 1, 40ms);

  for (const auto& each : made) {
    ASSERT_FALSE(each.has_value());
    EXPECT_EQ(each.error().code, core::Errc::timeout);
  }
  EXPECT_THAT(made[1].error().message, HasSubstr("group 'dp' (epoch 1), rank 1 on " + device() +
                                                 ": expected 3 members within 40 ms, but "
                                                 "ncclCommInitRankConfig still waits"));
  expect_nothing_left();
}

TEST_F(NcclFailure, APeerThatDiesDuringSetUpEndsIt) {
  begin(3, {}, {.tells_peers = true});
  auto first =
      std::async(std::launch::async, [&] { return members[0].backend->create_group(options_of(0, "dp")); });
  auto second =
      std::async(std::launch::async, [&] { return members[1].backend->create_group(options_of(1, "dp")); });
  await([&] { return fake->live_communicators() == 2; });
  members[1].process->die();

  const auto survivor = first.get();
  ASSERT_FALSE(survivor.has_value());
  EXPECT_EQ(survivor.error().code, core::Errc::peer_lost) << survivor.error().message;
  EXPECT_FALSE(second.get().has_value());
  expect_nothing_left();
}

TEST_F(NcclFailure, APeerThatDiesDuringAnOperationIsReported) {
  begin(3, {}, {.tells_peers = true});
  auto groups = create("dp");
  const auto first = post(*groups[0], {});
  const auto second = post(*groups[1], {});
  members[2].process->die();
  settle();

  for (const auto& status : {first, second}) {
    EXPECT_EQ(outcome_of(*status), "peer_lost");
    EXPECT_THAT(message_of(*status), HasSubstr("ncclRemoteError: the fake's last words"));
  }
  groups.clear();
  expect_nothing_left();
}

TEST_F(NcclFailure, PeersUnseenDeathIsFoundByTheDeadline) {
  begin(3);
  auto groups = create("dp");
  members[2].process->die();
  const auto first = post(*groups[0], {.deadline = 50ms});
  const auto second = post(*groups[1], {.deadline = 50ms});
  settle();

  for (const auto& status : {first, second}) EXPECT_EQ(outcome_of(*status), "timeout");
  EXPECT_THAT(message_of(*second), HasSubstr("group 'dp' (epoch 1), rank 1 on " + device() +
                                             ": barrier 0 did not end "
                                             "within 50 ms"));
  EXPECT_THAT(message_of(*second), HasSubstr("this one has posted 1, with digest "));
  groups.clear();
  expect_nothing_left();
}

TEST_F(NcclFailure, ADeadlineBeginsWhenTheStreamReachesTheOperation) {
  begin(2);
  auto before = create("tp");
  auto groups = create("dp");
  constexpr auto kDeadline = 500ms;
  std::vector<std::shared_ptr<OperationStatus>> statuses{post(*before[0], {}),
                                                         post(*groups[0], {.deadline = kDeadline})};
  const auto late = std::chrono::steady_clock::now() + 2 * kDeadline;
  await([=] { return std::chrono::steady_clock::now() > late; });
  statuses.push_back(post(*before[1], {}));
  statuses.push_back(post(*groups[1], {.deadline = kDeadline}));
  settle();

  for (const auto& status : statuses) EXPECT_EQ(outcome_of(*status), "ok");
  before.clear();
  groups.clear();
  expect_nothing_left();
}

TEST_F(NcclFailure, AnErrorThatNcclReportsLaterEndsTheGroup) {
  begin(2);
  auto groups = create("dp");
  const auto running = post(*groups[0], {});
  members[0].process->report(NcclStatus::system_error);
  settle();
  const auto later = post(*groups[0], {});

  EXPECT_EQ(outcome_of(*running), "io");
  EXPECT_THAT(message_of(*running), HasSubstr("an operation that was running ended in ncclSystemError"));
  EXPECT_EQ(message_of(*later), message_of(*running));
  groups.clear();
  expect_nothing_left();
}

// NCCL keeps the error as the communicator's state, and answers every later call with it.
TEST_F(NcclFailure, AnArgumentThatNcclRefusesEndsTheGroup) {
  begin(2);
  std::vector<std::int32_t> values(4);
  const Operation grouped{.kind = OperationKind::all_to_all,
                          .dtype = core::DType::i32,
                          .input = view_of(std::span<const std::int32_t>(values).first(2)),
                          .output = view_of(std::span(values).last(2))};
  const std::pair<Operation, const char*> cases[] = {{Operation{}, "ncclAllReduce"}, {grouped, "ncclSend"}};
  std::uint64_t epoch = 1;
  for (const auto& [operation, call] : cases) {
    auto groups = create("dp", epoch++);
    members[0].process->fail_next_call(NcclStatus::invalid_argument);

    const auto status = post(*groups[0], operation);
    const auto later = post(*groups[0], operation);

    EXPECT_EQ(outcome_of(*status), "internal");
    EXPECT_THAT(message_of(*status), HasSubstr(std::string(call) + " ended in ncclInvalidArgument"));
    EXPECT_THAT(message_of(*status), HasSubstr("make a new one in the next epoch"));
    EXPECT_EQ(message_of(*later), message_of(*status));
    groups.clear();
    expect_nothing_left();
  }
}

TEST_F(NcclFailure, EarlyRefusalLeavesTheGroupUsable) {
  begin(2);
  auto groups = create("dp");
  std::vector<std::int32_t> values(4);
  const Operation ragged{.kind = OperationKind::all_reduce,
                         .dtype = core::DType::i32,
                         .input = view_of(std::span<const std::int32_t>(values).first(1)),
                         .output = view_of(std::span(values).last(2))};

  const auto refused = groups[0]->post(ragged, members[0].stream.get());
  const auto first = post(*groups[0], {});
  const auto second = post(*groups[1], {});
  settle();

  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, core::Errc::invalid_argument);
  EXPECT_EQ(outcome_of(*first) + outcome_of(*second), "okok");
  groups.clear();
  expect_nothing_left();
}

TEST_F(NcclFailure, AnyOtherErrorOfACallEndsTheGroup) {
  begin(2);
  auto groups = create("dp");
  members[0].process->fail_next_call(NcclStatus::invalid_usage);
  const auto status = post(*groups[0], {});
  const auto later = post(*groups[0], {});

  EXPECT_EQ(outcome_of(*status), "internal");
  EXPECT_THAT(message_of(*status), HasSubstr("ncclAllReduce ended in ncclInvalidUsage"));
  EXPECT_EQ(message_of(*later), message_of(*status));
  groups.clear();
  expect_nothing_left();
}

TEST_F(NcclFailure, UnconnectedLaunchEndsAtItsDeadlineOrAbort) {
  begin(2);
  auto groups = create("dp");
  for (const auto& member : members) member.process->never_connect();
  const auto late = post(*groups[0], {.deadline = 30ms});
  EXPECT_EQ(outcome_of(*late), "timeout");
  EXPECT_THAT(message_of(*late), HasSubstr("was not launched within 30 ms"));

  auto waiting = std::async(std::launch::async, [&] { return post(*groups[1], {}); });
  EXPECT_EQ(waiting.wait_for(20ms), std::future_status::timeout);
  groups[1]->abort({core::Errc::aborted, "the epoch ended"});
  EXPECT_EQ(message_of(*waiting.get()), "the epoch ended");
  groups.clear();
  expect_nothing_left();
}

TEST_F(NcclFailure, MemberThatDoesNotConnectEndsAllSetUps) {
  begin(2);
  members[1].process->never_connect();
  for (const auto& each : try_to_create("dp", 2, 1, 60ms)) {
    ASSERT_FALSE(each.has_value());
    EXPECT_EQ(each.error().code, core::Errc::timeout) << each.error().message;
  }
  expect_nothing_left();
}

TEST_F(NcclFailure, StuckAbortIsReportedAndHoldsNobodyUp) {
  std::promise<core::Error> reported;
  NcclOptions options;
  options.abort_budget = 30ms;
  options.on_stuck = [&](const core::Error& error) { reported.set_value(error); };
  begin(1, options);
  add_member({});
  auto groups = create("dp");
  const auto status = post(*groups[0], {});
  members[0].process->block_aborts();
  groups[0]->abort({core::Errc::aborted, "the epoch ended"});

  EXPECT_EQ(outcome_of(*status), "aborted");
  EXPECT_THAT(reported.get_future().get().message,
              HasSubstr("rank 0 on " + device() +
                        ": ncclCommAbort did not return within 30 ms; the device cannot be used"));
  groups.clear();
  EXPECT_TRUE(members[1].backend->wait_for_disposals());
  EXPECT_FALSE(members[0].backend->wait_for_disposals());
  EXPECT_EQ(fake->live_communicators(), 1U);

  members[0].process->release_aborts();
  await([&] { return members[0].backend->wait_for_disposals(); });
  settle();
  expect_nothing_left();
}

TEST(NcclStuck, EndsTheProcessWithItsOwnCodeOnRequest) {
  EXPECT_EXIT(end_process_when_stuck()({core::Errc::timeout, "it is stuck"}),
              ::testing::ExitedWithCode(kAbortStuckExitCode), "troupe: it is stuck");
}

TEST_F(NcclFailure, FailedDestroyIsStillTheLastCall) {
  begin(2);
  for (const auto status : {NcclStatus::unhandled_cuda_error, NcclStatus::in_progress}) {
    for (const auto& member : members) member.process->spoil_destroys(status);
    auto groups = create("dp", static_cast<std::uint64_t>(status));
    groups.clear();
    expect_nothing_left();
  }
}

TEST_F(NcclFailure, AbandonedGroupEndsItsRunningOperation) {
  begin(2);
  auto groups = create("dp");
  const auto running = post(*groups[0], {});
  groups[0].reset();
  settle();

  EXPECT_EQ(outcome_of(*running), "aborted");
  EXPECT_THAT(message_of(*running), HasSubstr("given up while barrier 0 ran"));
  groups.clear();
  expect_nothing_left();
}

TEST_F(NcclFailure, MembersPostingGroupsInDifferentOrdersHitTheirDeadlines) {
  begin(2);
  auto first = create("dp");
  auto second = create("tp");
  const Operation operation{.deadline = 100ms};
  std::vector<std::shared_ptr<OperationStatus>> statuses{
      post(*first[0], operation), post(*second[1], operation), post(*second[0], operation),
      post(*first[1], operation)};
  settle();

  std::vector<std::string> outcomes;
  for (const auto& status : statuses) outcomes.push_back(outcome_of(*status));
  // The group whose deadline passes first makes room for the other.
  EXPECT_THAT(outcomes, ::testing::Contains("timeout"));
  EXPECT_THAT(outcomes, ::testing::Each(::testing::AnyOf("timeout", "ok")));
  first.clear();
  second.clear();
  expect_nothing_left();
}

}  // namespace
}  // namespace troupe::gpu
