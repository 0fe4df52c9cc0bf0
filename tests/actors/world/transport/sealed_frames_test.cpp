#include "actors/world/transport/sealed_frames.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace troupe::actors {
namespace {

using core::Errc;
using ::testing::HasSubstr;
using ::testing::Not;
using SealedSide = SealedFrames::Side;

JobToken secret_of(int number) {
  JobToken secret{};
  secret[0] = static_cast<std::byte>(number);
  return secret;
}

/// Two ends that have introduced themselves.
struct Ends {
  explicit Ends(int secret_of_client = 1, int secret_of_server = 1)
      : client(secret_of(secret_of_client), SealedSide::client),
        server(secret_of(secret_of_server), SealedSide::server) {
    client.feed(server.introduction());
    server.feed(client.introduction());
    EXPECT_TRUE(client.next());
    EXPECT_TRUE(server.next());
  }

  SealedFrames client;
  SealedFrames server;
};

void expect_text(SealedFrames& at, const std::string& text) {
  const auto found = at.next();
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(*found, text);
}

TEST(SealedFrames, CarryTextsInOrderInPiecesOfAnySize) {
  Ends ends;
  std::string bytes;
  for (const char* text : {"first", "", "third"}) bytes += ends.client.seal(text);
  EXPECT_THAT(bytes, Not(HasSubstr("first")));

  std::string joined;
  int frames = 0;
  for (const char byte : bytes) {
    ends.server.feed({&byte, 1});
    const auto found = ends.server.next();
    ASSERT_TRUE(found);
    if (!*found) continue;
    joined += **found + "|";
    ++frames;
  }

  EXPECT_EQ(frames, 3);
  EXPECT_EQ(joined, "first||third|");
  ends.client.feed(ends.server.seal("answer"));
  expect_text(ends.client, "answer");
}

TEST(SealedFrames, AnotherSecretIsNamed) {
  Ends ends(1, 2);
  ends.server.feed(ends.client.seal("hello"));

  const auto found = ends.server.next();

  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Errc::corrupt);
  EXPECT_THAT(found.error().message, HasSubstr("another secret"));
  EXPECT_FALSE(ends.server.is_proven());
}

TEST(SealedFrames, EveryChangedBitIsNoticed) {
  const std::size_t bits = 8 * Ends().client.seal("hello").size();
  for (std::size_t bit = 0; bit < bits; ++bit) {
    Ends ends;
    std::string frame = ends.client.seal("hello");
    frame[bit / 8] = static_cast<char>(frame[bit / 8] ^ (1 << (bit % 8)));
    // A longer length only waits for more, and then does not fit either.
    ends.server.feed(frame + std::string(70'000, 'x'));

    EXPECT_FALSE(ends.server.next()) << "bit " << bit;
  }
}

TEST(SealedFrames, RepeatedMovedAndMissingFramesAreNoticed) {
  for (const auto& [first, second] : {std::pair(0, 0), std::pair(1, 0), std::pair(0, 2)}) {
    Ends ends;
    const std::string frames[] = {ends.client.seal("a"), ends.client.seal("b"), ends.client.seal("c")};
    ends.server.feed(frames[first] + frames[second]);

    const auto one = ends.server.next();
    EXPECT_FALSE(one && ends.server.next()) << first << ", " << second;
  }
}

TEST(SealedFrames, RecordingsCannotBeReplayedElsewhereOrBack) {
  Ends recorded;
  const std::string hello = recorded.client.seal("hello");
  Ends fresh;
  fresh.server.feed(hello);
  EXPECT_FALSE(fresh.server.next());

  Ends reflected;
  reflected.client.feed(reflected.client.seal("hello"));
  EXPECT_FALSE(reflected.client.next());
}

TEST(SealedFrames, StrangersAreToldApartByTheirFirstBytes) {
  SealedFrames server(secret_of(1), SealedSide::server);
  server.feed("GET / HTTP/1.1\r\n");

  const auto found = server.next();

  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Errc::mismatch);
  EXPECT_THAT(found.error().message, HasSubstr("GET / HTTP/1.1"));
}

TEST(SealedFrames, TheFirstFrameIsSmallWhoeverSendsIt) {
  Ends ends;
  ends.server.feed(std::string("\x00\x00\x00\x7f", 4));

  EXPECT_FALSE(ends.server.next());
}

}  // namespace
}  // namespace troupe::actors
