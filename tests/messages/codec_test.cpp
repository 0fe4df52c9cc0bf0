#include "messages/codec.hpp"

#include <fmt/format.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "messages/wire/kinds.hpp"
#include "tests/messages/samples.hpp"
#include "tests/support/folder.hpp"

namespace troupe::messages {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

std::string hex_of(const std::vector<std::byte>& bytes) {
  std::string text;
  for (std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

std::string golden(std::string_view name) {
  auto file = tests_folder() / "messages" / "golden" / (std::string(name) + ".hex");
  std::ifstream stream(file);
  std::string text;
  stream >> text;
  return text;
}

/// Leave of rank 7, written by hand.
std::vector<std::byte> leave() {
  return bytes_of({0x96, 7, 23, 6, 0x93, 1, 3, 4, 0x93, 0, 5, 0, 0x91, 7});
}

std::string complaint_about(const std::vector<std::byte>& bytes) {
  auto decoded = decode(bytes);
  return decoded ? "nothing" : decoded.error().message;
}

std::string_view name_of_kind(const WireMessage& message) {
  return wire::kWireKinds[message.index()].name;
}

TEST(Codec, SamplesCoverEveryTypeInTheirOrder) {
  auto samples = sample_messages();

  ASSERT_EQ(samples.size(), std::variant_size_v<WireMessage>);
  for (std::size_t place = 0; place < samples.size(); ++place) EXPECT_EQ(samples[place].index(), place);
}

TEST(Codec, NoTagStandsForTwoKinds) {
  std::set<int> tags{16};  // PlanWanted had it
  for (const auto& kind : wire::kWireKinds) EXPECT_TRUE(tags.insert(kind.tag).second) << kind.name;
  for (auto tag : wire::kRetiredTags) EXPECT_TRUE(tags.insert(tag).second) << int{tag};
}

TEST(Codec, WritesTheGoldenBytesOfEveryMessage) {
  for (const WireMessage& message : sample_messages()) {
    EXPECT_EQ(hex_of(encode(sample_envelope(message))), golden(name_of_kind(message)))
        << name_of_kind(message);
  }
}

TEST(Codec, ReadsBackWhatItWrote) {
  for (const WireMessage& message : sample_messages()) {
    WireEnvelope envelope = sample_envelope(message);

    auto decoded = decode(encode(envelope));

    ASSERT_TRUE(decoded) << decoded.error().message;
    EXPECT_EQ(*decoded, envelope) << name_of_kind(message);
  }
}

TEST(Codec, WritesWhatTheSpecificationOfMessagePackSays) {
  EXPECT_EQ(encode(sample_envelope(Leave{core::Rank{7}})), leave());
}

TEST(Codec, RefusesEveryTruncation) {
  for (const WireMessage& message : sample_messages()) {
    auto bytes = encode(sample_envelope(message));
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      auto decoded = decode(std::span(bytes).first(size));
      ASSERT_FALSE(decoded) << name_of_kind(message) << " cut to " << size;
      EXPECT_EQ(decoded.error().code, core::Errc::corrupt);
    }
  }
}

TEST(Codec, RefusesBytesAfterTheEnvelope) {
  auto bytes = leave();
  bytes.push_back(std::byte{0});

  EXPECT_THAT(complaint_about(bytes), AllOf(HasSubstr("14 bytes"), HasSubstr("found 1 bytes after it")));
}

TEST(Codec, RefusesAnUnknownTag) {
  auto bytes = leave();
  bytes[2] = std::byte{127};

  EXPECT_THAT(complaint_about(bytes), HasSubstr("expected the tag of a message, found 127"));
}

TEST(Codec, RefusesByNameWhatStaysWithinAProcess) {
  auto refused_as = [](int tag) {
    auto bytes = leave();
    bytes[2] = static_cast<std::byte>(tag);
    return complaint_about(bytes);
  };

  EXPECT_THAT(refused_as(8), HasSubstr("VerdictArrived is what a process says to itself alone"));
  EXPECT_THAT(refused_as(20), HasSubstr("PeerLost is what a process says to itself alone"));
  EXPECT_THAT(refused_as(38), HasSubstr("ChunkStaged is what a process says to itself alone"));
  EXPECT_THAT(refused_as(59), HasSubstr("CopiesTidied is what a process says to itself alone"));
  for (auto tag : wire::kRetiredTags) EXPECT_THAT(refused_as(tag), HasSubstr("to itself alone"));
}

TEST(Codec, RefusesAnotherVersion) {
  auto bytes = leave();
  bytes[1] = std::byte{5};

  auto decoded = decode(bytes);

  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code, core::Errc::mismatch);
  EXPECT_THAT(decoded.error().message, HasSubstr("expected version 7 of the messages, found 5"));
}

TEST(Codec, NamesThePlaceOfAWrongType) {
  auto bytes = leave();
  bytes[13] = std::byte{0xc3};

  EXPECT_THAT(complaint_about(bytes),
              HasSubstr("envelope[5][0] (tag 23): expected an integer, found a boolean"));
}

TEST(Codec, RefusesAnEnumeratorOutOfRange) {
  auto bytes = leave();
  bytes[6] = std::byte{11};

  EXPECT_THAT(complaint_about(bytes),
              HasSubstr("envelope[3][1] (tag 23): expected a number from 0 to 10, found 11"));
}

TEST(Codec, RefusesANumberTooLargeForItsMember) {
  auto bytes =
      bytes_of({0x96, 7, 23, 6, 0x93, 0xcf, 0, 0, 0, 0, 0x80, 0, 0, 0, 3, 4, 0x93, 0, 5, 0, 0x91, 7});

  EXPECT_THAT(complaint_about(bytes), AllOf(HasSubstr("envelope[3][0]"), HasSubstr("found 2147483648")));
}

TEST(Codec, RefusesAWrongNumberOfMembers) {
  auto bytes = bytes_of({0x96, 7, 23, 6, 0x93, 1, 3, 4, 0x93, 0, 5, 0, 0x92, 7, 7});

  EXPECT_THAT(complaint_about(bytes), HasSubstr("envelope[5] (tag 23): expected 1 members, found 2"));
}

TEST(Codec, RefusesTypesThatMessagesDoNotUse) {
  EXPECT_THAT(complaint_about(bytes_of({0xc0})), HasSubstr("found nil"));
  EXPECT_THAT(complaint_about(bytes_of({0x81, 1, 2})), HasSubstr("found a map"));
  EXPECT_THAT(complaint_about(bytes_of({0xa1, 'x'})), HasSubstr("found a text string"));
  EXPECT_THAT(complaint_about(bytes_of({0xd4, 1, 2})), HasSubstr("found an extension"));
}

TEST(Codec, RefusesAnArrayThatTheBytesCannotHold) {
  auto bytes = bytes_of({0xdd, 0xff, 0xff, 0xff, 0xff, 1, 2, 3});

  EXPECT_THAT(complaint_about(bytes), HasSubstr("found an array that the message cannot hold"));
}

TEST(Codec, RefusesDeepNesting) {
  std::vector<std::byte> bytes(100000, std::byte{0x91});

  EXPECT_THAT(complaint_about(bytes), HasSubstr("found an array that the message cannot hold"));
}

TEST(Codec, RefusesMoreThanAnEnvelopeMayHave) {
  EXPECT_THAT(complaint_about(std::vector<std::byte>(kMaxEncodedBytes + 1)),
              HasSubstr("at most 1048576 bytes"));
}

/// Whatever comes in, it is an Error or an envelope which means the same when written again.
void expect_error_or_meaning(const std::vector<std::byte>& bytes) {
  auto decoded = decode(bytes);
  if (!decoded) {
    ASSERT_FALSE(decoded.error().message.empty());
    return;
  }
  auto written = encode(*decoded);
  auto again = decode(written);
  ASSERT_TRUE(again) << hex_of(bytes);
  ASSERT_EQ(encode(*again), written);
}

TEST(CodecFuzz, SurvivesMutationsOfEveryMessage) {
  auto samples = sample_messages();
  std::mt19937_64 random(20260101);
  std::size_t accepted = 0;
  for (int round = 0; round < 60000; ++round) {
    auto bytes = encode(sample_envelope(samples[random() % samples.size()]));
    for (std::uint64_t i = 0, changes = 1 + random() % 4; i < changes && !bytes.empty(); ++i) {
      auto place = bytes.begin() + static_cast<std::ptrdiff_t>(random() % bytes.size());
      switch (random() % 4) {
        case 0:
          *place = static_cast<std::byte>(random());
          break;
        case 1:
          *place ^= static_cast<std::byte>(1U << (random() % 8));
          break;
        case 2:
          bytes.erase(place);
          break;
        default:
          bytes.insert(place, static_cast<std::byte>(random()));
      }
    }
    ASSERT_NO_FATAL_FAILURE(expect_error_or_meaning(bytes)) << "round " << round;
    accepted += decode(bytes).has_value() ? 1 : 0;
  }
  EXPECT_GT(accepted, 100U) << "a fuzz test that reaches nothing shows nothing";
}

TEST(CodecFuzz, SurvivesRandomBytes) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 40000; ++round) {
    std::vector<std::byte> bytes(random() % 64);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (!bytes.empty() && random() % 2 == 0) bytes[0] = std::byte{0x96};
    ASSERT_NO_FATAL_FAILURE(expect_error_or_meaning(bytes)) << "round " << round;
  }
}

}  // namespace
}  // namespace troupe::messages
