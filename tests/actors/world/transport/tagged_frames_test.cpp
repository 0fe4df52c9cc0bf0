#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/actors/world/transport/pair.hpp"

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

/// What each kind of frame is on its way from the initiator to the acceptor.
std::vector<std::byte> sent_frame(Pair& pair, FrameKind kind) {
  const bool says = kind == FrameKind::message;
  EXPECT_EQ(says && pair.initiator.send(bytes_of("hello"), pair.now).has_value(), says);
  if (kind == FrameKind::heartbeat) pair.initiator.tick(pair.now += 500ms);
  if (kind == FrameKind::farewell) pair.initiator.leave(pair.now);
  return pair.initiator.take_output(SIZE_MAX);
}

void flip(std::vector<std::byte>& bytes, std::size_t bit) {
  bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
}

TEST(TaggedFrames, EveryChangedBitOfAFrameEndsTheConnection) {
  for (const auto kind : {FrameKind::message, FrameKind::heartbeat, FrameKind::farewell}) {
    std::size_t bits = 1;
    for (std::size_t bit = 0; bit < bits; ++bit) {
      Pair pair;
      pair.join();
      auto frame = sent_frame(pair, kind);
      bits = 8 * frame.size();
      flip(frame, bit);
      // A longer length only waits for more.
      if (bit < 32) frame.resize(frame.size() + kMaxFrameBytes);

      pair.acceptor.receive(frame, pair.now);

      EXPECT_EQ(story_of(pair.acceptor.take_events()), "lost corrupt")
          << "bit " << bit << " of kind " << static_cast<int>(kind);
    }
  }
}

TEST(TaggedFrames, EveryChangedBitOfAHandshakeEndsIt) {
  for (const int frame : {0, 1, 2, 3}) {
    std::size_t bits = 1;
    for (std::size_t bit = 0; bit < bits; ++bit) {
      Pair pair;
      for (int each = 0; each < 4; ++each) {
        const bool is_to_acceptor = each % 2 == 0;
        auto bytes = (is_to_acceptor ? pair.initiator : pair.acceptor).take_output(SIZE_MAX);
        if (each == frame) {
          bits = 8 * bytes.size();
          flip(bytes, bit);
        }
        (is_to_acceptor ? pair.acceptor : pair.initiator).receive(bytes, 0ns);
      }
      pair.settle();
      pair.initiator.tick(5s);

      EXPECT_FALSE(pair.initiator.is_joined()) << "bit " << bit << " of frame " << frame;
      EXPECT_EQ(pair.acceptor.is_joined(), frame == 3) << "bit " << bit << " of frame " << frame;
    }
  }
}

TEST(TaggedFrames, RepeatedMovedMissingAndForeignFramesEndTheConnection) {
  auto later = options_of(Pair::Side::initiator);
  later.nonce.fill(std::byte{9});
  Pair other(later);
  other.join();
  const auto foreign = sent_frame(other, FrameKind::message);
  for (const auto& [first, second] : {std::pair(0, 0), std::pair(1, 0), std::pair(0, 2), std::pair(3, 0)}) {
    Pair pair;
    pair.join();
    std::vector<std::vector<std::byte>> frames;
    for (int i = 0; i < 3; ++i) frames.push_back(sent_frame(pair, FrameKind::message));
    frames.push_back(foreign);

    pair.acceptor.receive(frames[static_cast<std::size_t>(first)], pair.now);
    pair.acceptor.receive(frames[static_cast<std::size_t>(second)], pair.now);

    const auto events = pair.acceptor.take_events();
    EXPECT_EQ(story_of(events), first == 0 ? "received hello, lost corrupt" : "lost corrupt")
        << first << ", " << second;
    EXPECT_THAT(reason_in(events), HasSubstr("a frame on the connection to rank 1 is not what it sent"));
  }
}

TEST(TaggedFrames, AFrameThatIsSentBackEndsTheConnection) {
  Pair pair;
  pair.join();

  pair.initiator.receive(sent_frame(pair, FrameKind::message), pair.now);

  EXPECT_EQ(story_of(pair.initiator.take_events()), "lost corrupt");
}

}  // namespace
}  // namespace troupe::actors
