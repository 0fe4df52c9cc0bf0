// One connection with a peer that says anything at all.
#include "gpu/collective/tcp/connection.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/errors.hpp"

namespace troupe::gpu {
namespace {

using core::Errc;
using ::testing::HasSubstr;

using Values = std::vector<std::byte>;

Values counted(std::size_t bytes) {
  Values values(bytes);
  for (std::size_t i = 0; i < bytes; ++i) values[i] = static_cast<std::byte>(i * 7 + i / 251);
  return values;
}

PassagePtr passage_of(Values& values, std::uint64_t slot, bool sends) {
  return std::make_shared<Passage>(Passage{
      .sends = sends, .peer = sends ? 1 : 0, .slot = slot, .data = values.data(), .bytes = values.size()});
}

/// Member 0's connection to member 1, and member 1's to member 0.
class ConnectionPair : public ::testing::Test {
 protected:
  ConnectionPair() { connect_again(); }

  void connect_again() {
    inbox = {};
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    zero = std::make_unique<Connection>(posix::Descriptor(ends[0]), 1, "there");
    one = std::make_unique<Connection>(posix::Descriptor(ends[1]), 0, "there");
  }

  void receive(const PassagePtr& passage) {
    const EarlyMessagePtr arrival = inbox.collect(passage, 2);
    one->expect();
    if (arrival) one->settle(*arrival, passage);
  }
  /// Waits until nothing moves any more.
  void move() {
    for (bool moved = true; moved;) {
      moved = zero->write().value();
      moved |= one->read(inbox).value();
      moved |= one->write().value();
      moved |= zero->read(other_inbox).value();
    }
  }
  /// Member 1's first error when it hears this from a peer that sends bytes of its own.
  core::Error error_of(std::string_view bytes) {
    if (!bytes.empty()) {
      EXPECT_EQ(send(zero->descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(bytes.size()));
    }
    for (int i = 0; i < 10; ++i) {
      const auto moved = one->read(inbox);
      if (!moved) return moved.error();
    }
    return {Errc::internal, "nothing is wrong", {}};
  }

  std::unique_ptr<Connection> zero;
  std::unique_ptr<Connection> one;
  Inbox inbox;  ///< of member 1
  Inbox other_inbox;
};

/// A frame as a peer without manners would make it.
std::string frame(int kind, std::uint64_t slot, std::uint64_t bytes, std::uint32_t credit = 0) {
  std::string text(24, '\0');
  text[0] = static_cast<char>(kind);
  std::memcpy(text.data() + 4, &credit, sizeof credit);
  std::memcpy(text.data() + 8, &slot, sizeof slot);
  std::memcpy(text.data() + 16, &bytes, sizeof bytes);
  return text;
}

TEST_F(ConnectionPair, BringsMessagesOfAnySizeWhicheverSideComesFirst) {
  std::uint64_t slot = 0;
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{4096}, std::size_t{16383}, std::size_t{16384}, Connection::kEagerBytes,
        Connection::kEagerBytes + 1, std::size_t{3} << 20}) {
    for (const bool sent_first : {true, false}) {
      Values sent = counted(bytes);
      Values received(bytes);
      const auto to = passage_of(sent, ++slot, true);
      const auto from = passage_of(received, slot, false);
      if (!sent_first) receive(from);
      zero->send(to);
      move();
      if (sent_first) receive(from);
      move();
      EXPECT_TRUE(to->done && from->done) << bytes;
      EXPECT_TRUE(sent == received) << bytes;
      EXPECT_FALSE(zero->is_needed() || one->is_needed());
    }
  }
}

TEST_F(ConnectionPair, KeepsOrderWithinASlotButNotBetween) {
  constexpr std::size_t kCount = 30;
  std::vector<Values> sent;
  std::vector<Values> received(kCount);
  for (std::size_t i = 0; i < kCount; ++i) sent.push_back(Values(i % 2 == 0 ? 10 : 300000, std::byte(i)));
  // Far more than the other side takes unasked.
  for (std::size_t i = 0; i < kCount; ++i) zero->send(passage_of(sent[i], i % 3, true));
  move();
  std::vector<PassagePtr> posted;
  for (const std::size_t slot : {2, 0, 1}) {
    for (std::size_t i = slot; i < kCount; i += 3) {
      received[i].resize(sent[i].size());
      posted.push_back(passage_of(received[i], slot, false));
      receive(posted.back());
    }
  }
  move();

  EXPECT_TRUE(sent == received);
  EXPECT_TRUE(std::ranges::all_of(posted, [](const PassagePtr& each) { return each->done; }));
}

TEST_F(ConnectionPair, HoldsLittleUnwantedAndGoesOnWhenWanted) {
  constexpr std::size_t kCount = 200;
  Values sent = counted(Connection::kEagerBytes);
  std::vector<PassagePtr> sends;
  for (std::size_t i = 0; i < kCount; ++i) {
    sends.push_back(passage_of(sent, i, true));
    zero->send(sends.back());
  }
  move();
  const auto gone = std::ranges::count_if(sends, [](const PassagePtr& each) { return each->done; });
  EXPECT_LE(static_cast<std::size_t>(gone) * sent.size(), std::size_t{4} << 20);

  for (std::size_t i = kCount; i-- > 0;) {
    Values received(sent.size());
    const auto from = passage_of(received, i, false);
    receive(from);
    move();
    ASSERT_TRUE(from->done) << i;
    ASSERT_TRUE(received == sent) << i;
  }
}

TEST_F(ConnectionPair, SaysWhyAMemberLeaves) {
  zero->part({Errc::peer_lost, "rank 5 is gone", {{5}, {7}}});

  const auto error = error_of("");
  EXPECT_EQ(error.message, "rank 5 is gone");
  EXPECT_EQ(error.code, Errc::peer_lost);
  EXPECT_EQ(error.missing, (std::vector<core::Rank>{{5}, {7}}));
  EXPECT_TRUE(one->has_parted());
}

TEST_F(ConnectionPair, SaysThatItWasClosed) {
  zero.reset();
  EXPECT_EQ(one->read(inbox).error().message, "it was closed");
}

TEST_F(ConnectionPair, FindsAMessageOfAnotherSize) {
  Values received(100);
  receive(passage_of(received, 3, false));
  EXPECT_EQ(error_of(frame(1, 3, 99) + std::string(99, 'x')).code, Errc::mismatch);
}

TEST_F(ConnectionPair, RefusesWhatIsNoFrame) {
  for (const std::string& said :
       {std::string(24, 'x'), frame(0, 0, 0), frame(99, 0, 0), frame(1, 0, 0), frame(2, 0, 0),
        frame(1, 0, Connection::kEagerBytes + 1), frame(1, 0, ~std::uint64_t{0}),
        // Announcements that were never made.
        frame(3, 1, 8), frame(4, 1, 8), frame(6, 0, 0), frame(6, 0, std::uint64_t{1} << 40)}) {
    connect_again();
    EXPECT_EQ(error_of(said).code, Errc::corrupt) << ::testing::PrintToString(said);
  }
}

TEST_F(ConnectionPair, SurvivesNoiseWithoutTakingMuch) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    connect_again();
    std::string noise(1 + random() % 4000, '\0');
    for (char& each : noise) each = static_cast<char>(random());
    // Often well-formed at the beginning.
    noise = frame(static_cast<int>(random() % 7), random() % 3, random() % 300,
                  static_cast<std::uint32_t>(random())) +
            noise;
    const auto error = error_of(noise);
    EXPECT_THAT(core::to_string(error.code),
                ::testing::AnyOf(std::string("corrupt"), std::string("mismatch"), std::string("internal"),
                                 std::string("peer_lost")));
  }
}

}  // namespace
}  // namespace troupe::gpu
