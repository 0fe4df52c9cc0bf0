#include "gpu/collective/peers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "core/errors.hpp"
#include "tests/gpu/at_once.hpp"
#include "tests/support/rendezvous_memory.hpp"

namespace troupe::gpu {
namespace {

using core::DType;
using core::Errc;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kLimit = std::chrono::seconds(60);

/// What members that are threads have together, as each member's own.
class SharedRendezvous final : public Rendezvous {
 public:
  explicit SharedRendezvous(MemoryRendezvous& of) : of_(of) {}
  core::Result<void> set(const std::string& key, const std::string& value) override {
    return of_.set(key, value);
  }
  core::Result<std::string> get(const std::string& key, std::chrono::nanoseconds deadline) override {
    return of_.get(key, deadline);
  }

 private:
  MemoryRendezvous& of_;
};

/// Members on one host, or each on a host of its own.
class PeersOn : public ::testing::TestWithParam<bool> {
 protected:
  void connect(int size) {
    members.resize(static_cast<std::size_t>(size));
    static int jobs = 0;
    const auto job = fmt::format("peers-{}-{}", ::getpid(), ++jobs);
    at_once(members.size(), [&](std::size_t i) {
      Peers::Options options;
      options.group = {.job = job, .epoch = {1}, .name = "world", .members = {}, .self = {}};
      for (int member = 0; member < size; ++member) options.group.members.push_back({member});
      options.group.self = options.group.members[i];
      options.host = GetParam() ? 1 : i + 1;
      members[i] =
          Peers::connect(std::make_unique<SharedRendezvous>(rendezvous), std::move(options), nullptr).value();
    });
  }

  MemoryRendezvous rendezvous;
  std::vector<std::unique_ptr<Peers>> members;
};

template <class T>
BufferView view_of_all(std::vector<T>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T)};
}

Peers::Collective sum_over(std::vector<BufferView> pieces) {
  Peers::Collective collective;
  collective.operation.kind = OperationKind::all_reduce;
  collective.operation.dtype = DType::f32;
  collective.inputs = pieces;
  collective.outputs = std::move(pieces);
  return collective;
}

INSTANTIATE_TEST_SUITE_P(Hosts, PeersOn, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "one" : "several"; });

TEST_P(PeersOn, AddUpPiecesOfMemoryThatOthersOwn) {
  connect(3);
  std::vector<std::vector<float>> first(3), second(3);
  at_once(3, [&](std::size_t i) {
    first[i] = {static_cast<float>(i), 10};
    second[i] = {static_cast<float>(i) * 100};
    EXPECT_TRUE(members[i]->run(sum_over({view_of_all(first[i]), {}, view_of_all(second[i])})));
  });

  EXPECT_THAT(first, ::testing::Each(ElementsAre(3, 30)));
  EXPECT_THAT(second, ::testing::Each(ElementsAre(300)));
}

TEST_P(PeersOn, RunWhatIsPostedInCallOrder) {
  connect(2);
  std::vector<std::vector<float>> values(2, std::vector<float>{1, 2});
  at_once(2, [&](std::size_t i) {
    std::uint64_t last = 0;
    for (int round = 0; round < 20; ++round)
      last = members[i]->post(sum_over({view_of_all(values[i])})).value();
    EXPECT_EQ(last, 20U);
    EXPECT_TRUE(members[i]->wait(last, kLimit));
    EXPECT_EQ(members[i]->completed(), 20U);
    // What is run comes after what was posted.
    EXPECT_TRUE(members[i]->run(sum_over({view_of_all(values[i])})));
  });

  EXPECT_THAT(values, ::testing::Each(ElementsAre(1 << 21, 1 << 22)));
}

TEST_P(PeersOn, WaitWithinTheirLimitWhileTheOperationGoesOn) {
  connect(2);
  std::vector<float> own{1}, other{2};
  const auto posted = members[0]->post(sum_over({view_of_all(own)})).value();

  const auto waited = members[0]->wait(posted, std::chrono::milliseconds(20));
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().code, Errc::timeout);

  EXPECT_TRUE(members[1]->run(sum_over({view_of_all(other)})));
  EXPECT_TRUE(members[0]->wait(posted, kLimit));
  EXPECT_THAT(own, ElementsAre(3));
}

TEST_P(PeersOn, KeepMessagesOfTagsAndSizesApart) {
  connect(3);
  std::vector<std::int32_t> one{1}, two{2}, pair{3, 4};
  std::vector<std::int32_t> got_one(1), got_two(1), got_pair(2), from_anybody(1);
  const OperationDeadline deadline("a message", kLimit);
  // Received in another order than sent.
  const auto second = members[1]->receive(0, 7, view_of_all(got_two)).value();
  const auto longer = members[1]->receive(0, 5, view_of_all(got_pair)).value();
  const auto first = members[1]->receive(0, 5, view_of_all(got_one)).value();
  std::vector<std::unique_ptr<PostedTransfer>> sent;
  sent.push_back(members[0]->send(1, 5, view_of_all(one)).value());
  sent.push_back(members[0]->send(1, 7, view_of_all(two)).value());
  sent.push_back(members[0]->send(1, 5, view_of_all(pair)).value());
  for (const auto& each : {&first, &second, &longer}) EXPECT_EQ((*each)->wait(deadline).value(), 0);

  EXPECT_THAT(got_one, ElementsAre(1));
  EXPECT_THAT(got_two, ElementsAre(2));
  EXPECT_THAT(got_pair, ElementsAre(3, 4));
  const auto any = members[0]->receive(kAnyMember, 9, view_of_all(from_anybody)).value();
  sent.push_back(members[2]->send(0, 9, view_of_all(two)).value());
  EXPECT_EQ(any->wait(deadline).value(), 2);
  for (const auto& each : sent) EXPECT_TRUE(each->wait(deadline));
}

TEST_P(PeersOn, RefuseWhatFitsNoOperationAndWorkOn) {
  connect(2);
  std::vector<float> values{1};
  EXPECT_EQ(members[0]->send(2, 0, view_of_all(values)).error().code, Errc::invalid_argument);
  EXPECT_EQ(members[0]->receive(-2, 0, view_of_all(values)).error().code, Errc::invalid_argument);

  at_once(2, [&](std::size_t i) {
    std::vector<float> own{1};
    EXPECT_TRUE(members[i]->run(sum_over({view_of_all(own)})));
    EXPECT_THAT(own, ElementsAre(2));
  });
}

TEST_P(PeersOn, EndInTheReasonTheyAreAbortedFor) {
  connect(2);
  std::vector<float> values{1};
  const auto posted = members[0]->post(sum_over({view_of_all(values)})).value();

  members[0]->abort({Errc::aborted, "the trainer gave up"});

  const auto waited = members[0]->wait(posted, kLimit);
  ASSERT_FALSE(waited);
  EXPECT_THAT(waited.error().message, HasSubstr("the trainer gave up"));
  EXPECT_FALSE(members[0]->run(sum_over({view_of_all(values)})));
}

}  // namespace
}  // namespace troupe::gpu
