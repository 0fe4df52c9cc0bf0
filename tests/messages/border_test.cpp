#include "messages/border.hpp"

#include <fmt/format.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "messages/codec.hpp"
#include "messages/wire/kinds.hpp"
#include "tests/messages/samples.hpp"

namespace troupe::messages {
namespace {

using core::Rank;
using ::testing::HasSubstr;

constexpr Border kBorder{.peer = {1}, .self = {0}};

/// What each role says to which, as docs/architecture.md has it: all that rank 1 may say to rank 0.
const std::set<std::string> kMayBeSaid{
    "Join rank_supervisor coordinator",
    "PlanLines rank_supervisor coordinator",
    "PlanHashes rank_supervisor coordinator",
    "RankFailed rank_supervisor coordinator",
    "Leave rank_supervisor coordinator",
    "StepAccount rank_supervisor coordinator",
    "TrainerCalls trainer coordinator",
    "StepsTimed trainer coordinator",
    "StoreSet trainer coordinator",
    "StoreGet trainer coordinator",
    "SaveAnnounced checkpoint_writer checkpoint_coordinator",
    "StructurePart checkpoint_writer checkpoint_coordinator",
    "FilesDurable checkpoint_writer checkpoint_coordinator",
    "SaveFailed checkpoint_writer checkpoint_coordinator",
    "CopyReady replica_keeper replica_coordinator",
    "CopiesHeld replica_keeper replica_coordinator",
};

/// The rank that a message is about, when it is about one.
Rank subject_of(const Message& message) {
  return std::visit(
      [](const auto& body) {
        if constexpr (requires { body.rank; }) {
          return body.rank;
        } else {
          return kBorder.peer;
        }
      },
      message);
}

/// From rank 1 to rank 0 or back, as the kind wants it.
WireEnvelope sent_rightly(const WireMessage& message) {
  const auto& kind = wire::kWireKinds[message.index()];
  const bool comes_from_hub = kind.from == Role::coordinator || kind.from == Role::checkpoint_coordinator ||
                              kind.from == Role::replica_coordinator;
  const Rank from{comes_from_hub ? 0 : 1};
  return {{from, kind.from, 0}, {{1 - from.value}, kind.to, 0}, core::Epoch{6}, message};
}

std::string refusal_of(const Border& border, const WireEnvelope& envelope) {
  auto arrived = incoming(border, encode(envelope));
  return arrived ? "nothing" : arrived.error().message;
}

TEST(Border, PassesEveryKindOnItsOwnWay) {
  for (const auto& message : sample_messages()) {
    const auto sent = sent_rightly(message);

    const auto arrived = incoming({.peer = sent.from.rank, .self = sent.to.rank}, encode(sent));

    ASSERT_TRUE(arrived) << arrived.error().message;
    EXPECT_EQ(arrived->from, sent.from);
    EXPECT_EQ(arrived->to, sent.to);
    EXPECT_EQ(arrived->epoch, sent.epoch);
    EXPECT_EQ(outgoing(*arrived), encode(sent));
  }
}

TEST(Border, RefusesEveryKindInTheNameOfAnother) {
  for (const auto& message : sample_messages()) {
    const auto sent = sent_rightly(message);

    EXPECT_THAT(refusal_of({.peer = {2}, .self = sent.to.rank}, sent),
                HasSubstr(fmt::format("in the name of rank {}", sent.from.rank.value)));
  }
}

TEST(Border, RefusesEveryKindFromAndToAnyOtherRole) {
  for (const auto& message : sample_messages()) {
    const auto sent = sent_rightly(message);
    const Border border{.peer = sent.from.rank, .self = sent.to.rank};
    for (int role = 0; role <= static_cast<int>(Role::replica_coordinator); ++role) {
      auto from_another = sent;
      from_another.from.role = static_cast<Role>(role);
      auto to_another = sent;
      to_another.to.role = static_cast<Role>(role);

      EXPECT_EQ(refusal_of(border, from_another) == "nothing", from_another == sent);
      EXPECT_EQ(refusal_of(border, to_another) == "nothing", to_another == sent);
    }
    auto of_another_rank = sent;
    of_another_rank.to.rank = {5};
    EXPECT_NE(refusal_of(border, of_another_rank), "nothing");
    auto numbered = sent;
    numbered.to.index = 1;
    EXPECT_NE(refusal_of(border, numbered), "nothing");
  }
}

TEST(Border, RefusesARankThatPlaysTheCoordinator) {
  auto fence = sent_rightly(Fence{Rank{0}, {}});
  fence.from.rank = {1};
  fence.to.rank = {2};

  EXPECT_EQ(refusal_of({.peer = {1}, .self = {2}}, fence),
            "rank 1 sent Fence from coordinator @ rank 1 to rank_supervisor @ rank 2, which only the "
            "coordinator sends, and only to the rank_supervisor");
}

TEST(BorderFuzz, NothingEntersThatAHostilePeerMayNotSay) {
  const auto samples = sample_messages();
  std::mt19937_64 random(20260730);
  std::set<std::string> entered;
  for (int round = 0; round < 60000; ++round) {
    auto bytes = encode(sent_rightly(samples[random() % samples.size()]));
    for (std::uint64_t i = 0, changes = random() % 3; i < changes; ++i) {
      // Most of it where the tag, the ends and the ranks are.
      const std::size_t reach = random() % 2 == 0 ? std::min<std::size_t>(bytes.size(), 14) : bytes.size();
      bytes[random() % reach] =
          random() % 2 == 0 ? static_cast<std::byte>(random() % 64) : static_cast<std::byte>(random());
    }
    const auto arrived = incoming(kBorder, bytes);
    if (!arrived) {
      ASSERT_THAT(arrived.error().message, HasSubstr("rank 1 "));
      continue;
    }
    ASSERT_EQ(arrived->from.rank, kBorder.peer);
    ASSERT_EQ(arrived->to.rank, kBorder.self);
    ASSERT_EQ(subject_of(arrived->body), kBorder.peer);
    entered.insert(fmt::format("{} {} {}", name_of(arrived->body), name_of(arrived->from.role),
                               name_of(arrived->to.role)));
  }
  EXPECT_EQ(entered, kMayBeSaid) << "no more, and a fuzz test that reaches less shows less";
}

}  // namespace
}  // namespace troupe::messages
