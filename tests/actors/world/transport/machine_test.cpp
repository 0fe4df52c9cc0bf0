#include "actors/world/transport/machine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/errors.hpp"
#include "tests/actors/world/transport/pair.hpp"

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST(TransportMachine, BothSidesJoinWhenTheyShareJobAndToken) {
  Pair pair;

  pair.settle();

  EXPECT_EQ(story_of(pair.initiator.take_events()), "joined 0");
  EXPECT_EQ(story_of(pair.acceptor.take_events()), "joined 1");
}

TEST(TransportMachine, DeliversMessagesInOrderFromSingleBytes) {
  Pair pair;
  pair.join();
  for (const char* text : {"a", "", "bc"}) ASSERT_TRUE(pair.initiator.send(bytes_of(text), pair.now));

  while (pair.initiator.output_bytes() > 0) pair.acceptor.receive(pair.initiator.take_output(1), pair.now);

  EXPECT_EQ(story_of(pair.acceptor.take_events()), "received a, received , received bc");
}

TEST(TransportMachine, RefusesInitiatorsAndAcceptorsWithTheWrongToken) {
  auto stranger = options_of(Pair::Side::initiator);
  stranger.token = token_of(8);
  Pair pair(stranger);

  pair.settle();

  // The initiator checks the acceptor's proof first, so an acceptor never proves itself to a stranger for
  // nothing: both learn only that the tokens differ.
  EXPECT_THAT(reason_in(pair.initiator.take_events()),
              HasSubstr("does not prove that it belongs to this start of this job"));
  EXPECT_EQ(story_of(pair.acceptor.take_events()), "");
}

/// An initiator which proves itself without looking at the acceptor's proof.
TEST(TransportMachine, AnAcceptorRefusesAWrongProof) {
  TransportMachine acceptor(options_of(Pair::Side::acceptor), 0ns);
  std::vector<std::byte> hello;
  ByteWriter(hello).number(std::uint32_t{43}).number(std::uint8_t{1}).number(kTransportMagic);
  ByteWriter(hello).number(kTransportVersion).number(std::int32_t{1}).bytes(Nonce{});
  std::vector<std::byte> proof;
  ByteWriter(proof).number(std::uint32_t{33}).number(std::uint8_t{3}).bytes(Proof{});

  acceptor.receive(hello, 0ns);
  acceptor.take_output(SIZE_MAX);
  acceptor.receive(proof, 0ns);

  EXPECT_EQ(story_of(acceptor.take_events()), "lost mismatch");
  EXPECT_THAT(text_of(acceptor.take_output(SIZE_MAX)), HasSubstr("TROUPE_JOB_TOKEN"));
}

TEST(TransportMachine, ARecordedHandshakeIsRefusedTheNextTime) {
  Pair pair;
  auto hello = pair.initiator.take_output(SIZE_MAX);
  pair.acceptor.receive(hello, 0ns);
  pair.initiator.receive(pair.acceptor.take_output(SIZE_MAX), 0ns);
  auto proof = pair.initiator.take_output(SIZE_MAX);
  auto again = options_of(Pair::Side::acceptor);
  again.nonce.fill(std::byte{9});
  TransportMachine acceptor(again, 0ns);

  acceptor.receive(hello, 0ns);
  acceptor.receive(proof, 0ns);

  EXPECT_EQ(story_of(acceptor.take_events()), "lost mismatch");
}

/// The proof with which a challenge ends.
std::vector<std::byte> proof_in(const std::vector<std::byte>& challenge) {
  return {challenge.end() - static_cast<std::ptrdiff_t>(sizeof(Proof)), challenge.end()};
}

TEST(TransportMachine, WhoeverEchoesTheAcceptorsProofIsRefused) {
  TransportMachine acceptor(options_of(Pair::Side::acceptor), 0ns);
  auto without_token = options_of(Pair::Side::initiator);
  without_token.token = token_of(8);
  TransportMachine stranger(without_token, 0ns);

  acceptor.receive(stranger.take_output(SIZE_MAX), 0ns);
  acceptor.receive(frame_of(FrameKind::proof, proof_in(acceptor.take_output(SIZE_MAX))), 0ns);

  EXPECT_EQ(story_of(acceptor.take_events()), "lost mismatch");
}

TEST(TransportMachine, ARecordedChallengeIsRefusedTheNextTime) {
  Pair pair;
  pair.acceptor.receive(pair.initiator.take_output(SIZE_MAX), 0ns);
  const auto challenge = pair.acceptor.take_output(SIZE_MAX);
  auto again = options_of(Pair::Side::initiator);
  again.nonce.fill(std::byte{9});
  TransportMachine initiator(again, 0ns);
  initiator.take_output(SIZE_MAX);

  initiator.receive(challenge, 0ns);

  EXPECT_EQ(story_of(initiator.take_events()), "lost mismatch");
  EXPECT_EQ(initiator.output_bytes(), 0U) << "it proves itself to nobody who has not";
}

TEST(TransportMachine, RefusesARankOfAnotherJobWithOneToken) {
  auto other = options_of(Pair::Side::initiator);
  other.job = "another";
  Pair pair(other);

  pair.settle();

  EXPECT_THAT(reason_in(pair.initiator.take_events()), HasSubstr("and two jobs two ports"));
  EXPECT_EQ(story_of(pair.acceptor.take_events()), "");
}

TEST(TransportMachine, BytesOnTheWireTellNothingOfTheJob) {
  auto left = options_of(Pair::Side::initiator);
  auto right = options_of(Pair::Side::acceptor);
  left.job = right.job = "train_5f3a.12";
  TransportMachine initiator(left, 0ns);
  TransportMachine acceptor(right, 0ns);
  TransportMachine suspicious(right, 0ns);

  const auto hello = initiator.take_output(SIZE_MAX);
  acceptor.receive(hello, 0ns);
  const auto challenge = acceptor.take_output(SIZE_MAX);
  suspicious.receive(hello, 0ns);
  suspicious.take_output(SIZE_MAX);
  suspicious.receive(frame_of(FrameKind::proof, std::vector<std::byte>(sizeof(Proof))), 0ns);
  const auto refusal = suspicious.take_output(SIZE_MAX);

  // A hello of magic, version, rank and nonce has no room for more.
  EXPECT_EQ(hello.size(), kFrameHeaderBytes + 4 + 2 + 4 + sizeof(Nonce));
  for (const auto& said : {hello, challenge, refusal}) {
    EXPECT_THAT(text_of(said), ::testing::Not(HasSubstr("5f3a")));
    EXPECT_THAT(text_of(said), ::testing::Not(HasSubstr("train")));
  }
  EXPECT_THAT(text_of(refusal), HasSubstr("rank 1 does not prove"));
}

TEST(TransportMachine, TellsAnInitiatorWhyItIsNotAdmitted) {
  auto choosy = options_of(Pair::Side::acceptor);
  choosy.admit = [](core::Rank rank) {
    return core::Result<void>(core::fail(core::Errc::already_exists, "rank {} is here", rank.value));
  };
  Pair pair(options_of(Pair::Side::initiator), choosy);

  pair.settle();

  EXPECT_EQ(story_of(pair.acceptor.take_events()), "lost already_exists");
  EXPECT_THAT(reason_in(pair.initiator.take_events()), HasSubstr("rank 0 refused: rank 1 is here"));
}

TEST(TransportMachine, ClosesWithoutARefusalWhereTheJobIsEnding) {
  auto leaving = options_of(Pair::Side::acceptor);
  leaving.admit = [](core::Rank) { return core::Result<void>(core::fail(core::Errc::aborted, "it ends")); };
  Pair pair(options_of(Pair::Side::initiator), leaving);

  pair.settle();

  EXPECT_EQ(story_of(pair.acceptor.take_events()), "lost aborted");
  EXPECT_TRUE(pair.acceptor.is_over());
  EXPECT_FALSE(pair.initiator.is_over()) << "its wire ends, as with a process that is gone";
}

TEST(TransportMachine, RefusesGarbageByQuotingIt) {
  TransportMachine acceptor(options_of(Pair::Side::acceptor), 0ns);

  acceptor.receive(bytes_of("GET / HTTP/1.1\r\n"), 0ns);

  EXPECT_THAT(reason_in(acceptor.take_events()), HasSubstr("found \"GET / HTTP/1.1..\""));
  EXPECT_TRUE(acceptor.is_over());
}

TEST(TransportMachine, RefusesAnotherVersion) {
  TransportMachine acceptor(options_of(Pair::Side::acceptor), 0ns);
  Pair pair;
  auto hello = pair.initiator.take_output(SIZE_MAX);
  hello[kFrameHeaderBytes + 4] = std::byte{4};

  acceptor.receive(hello, 0ns);

  EXPECT_THAT(reason_in(acceptor.take_events()),
              HasSubstr("expected version 3 of the control transport, found 4"));
}

TEST(TransportMachine, RefusesAFrameAboveTheCapOnceAnnounced) {
  Pair pair;
  pair.join();
  std::vector<std::byte> header;
  ByteWriter(header).number(static_cast<std::uint32_t>(kMaxFrameBytes + 1)).number(std::uint8_t{6});

  pair.acceptor.receive(header, pair.now);

  EXPECT_THAT(reason_in(pair.acceptor.take_events()), HasSubstr("announced a frame of 1048577 bytes"));
}

TEST(TransportMachine, AStrangerCannotAnnounceALargeFrame) {
  TransportMachine acceptor(options_of(Pair::Side::acceptor), 0ns);
  std::vector<std::byte> header;
  ByteWriter(header).number(static_cast<std::uint32_t>(kMaxHandshakeFrameBytes + 1)).number(std::uint8_t{1});

  acceptor.receive(header, 0ns);

  EXPECT_EQ(story_of(acceptor.take_events()), "lost corrupt");
}

TEST(TransportMachine, AStrangerCannotSendMessages) {
  TransportMachine acceptor(options_of(Pair::Side::acceptor), 0ns);
  std::vector<std::byte> message;
  ByteWriter(message).number(std::uint32_t{17}).number(std::uint8_t{6}).number(std::uint64_t{0});
  ByteWriter(message).number(std::uint64_t{0});

  acceptor.receive(message, 0ns);

  EXPECT_EQ(story_of(acceptor.take_events()), "lost corrupt");
}

TEST(TransportMachine, RefusesAMessageOutOfSequence) {
  Pair pair;
  pair.join();
  std::vector<std::byte> body;
  ByteWriter(body).number(std::uint64_t{1}).number(std::uint64_t{0});

  pair.initiator.receive(tagged(FrameKind::message, body, 0), pair.now);

  EXPECT_EQ(reason_in(pair.initiator.take_events()), "expected message 0 of rank 0, found 1");
}

TEST(TransportMachine, SendsHeartbeatsWhenItHasNothingToSay) {
  Pair pair;
  pair.join();

  for (int i = 0; i < 100; ++i) {
    pair.now = std::min(pair.initiator.deadline(), pair.acceptor.deadline());
    pair.initiator.tick(pair.now);
    pair.acceptor.tick(pair.now);
    pair.settle();
  }

  EXPECT_GT(pair.now, 20s);
  EXPECT_EQ(story_of(pair.initiator.take_events()), "");
  EXPECT_EQ(story_of(pair.acceptor.take_events()), "");
}

TEST(TransportMachine, SeesSilenceExactlyAtTheLimit) {
  Pair pair;
  pair.now = 1s;
  pair.join();

  pair.acceptor.tick(6s - 1ns);
  EXPECT_EQ(story_of(pair.acceptor.take_events()), "");
  pair.acceptor.tick(6s);

  auto events = pair.acceptor.take_events();
  EXPECT_EQ(story_of(events), "lost timeout");
  EXPECT_THAT(reason_in(events), HasSubstr("nothing was heard from rank 1 for 5 s"));
}

TEST(TransportMachine, GivesAHandshakeOneSilenceHoweverSlowlyItTalks) {
  TransportMachine acceptor(options_of(Pair::Side::acceptor), 0ns);
  Pair pair;
  auto hello = pair.initiator.take_output(SIZE_MAX);

  for (std::size_t i = 0; i < 10; ++i) acceptor.receive(std::span(hello).subspan(i, 1), i * 400ms);
  acceptor.tick(5s);

  EXPECT_EQ(story_of(acceptor.take_events()), "lost timeout");
}

TEST(TransportMachine, CountsWhatMayNotHaveArrived) {
  Pair pair;
  pair.join();
  ASSERT_TRUE(pair.initiator.send(bytes_of("a"), pair.now));
  ASSERT_TRUE(pair.initiator.send(bytes_of("b"), pair.now));
  pair.settle();
  ASSERT_TRUE(pair.acceptor.send(bytes_of("acknowledges two"), pair.now));
  pair.settle();
  ASSERT_TRUE(pair.initiator.send(bytes_of("c"), pair.now));

  pair.initiator.disconnected("connection reset by peer");

  auto events = pair.initiator.take_events();
  ASSERT_EQ(story_of(events), "received acknowledges two, lost peer_lost");
  EXPECT_EQ(std::get<Lost>(events.back()).unacknowledged, 1U);
  EXPECT_THAT(reason_in(events), HasSubstr("connection reset by peer"));
}

TEST(TransportMachine, BlamesNobodyForTimeItDidNotRun) {
  Pair pair;
  pair.join();

  pair.initiator.disconnected("end of file", 6s);

  auto events = pair.initiator.take_events();
  ASSERT_EQ(story_of(events), "lost peer_lost");
  EXPECT_THAT(reason_in(events), HasSubstr("this process did not run for 6 s"));
  EXPECT_THAT(reason_in(events), testing::Not(HasSubstr("rank 0")));
}

/// A frame that acknowledges this many messages: of a kind that carries nothing else, or a first message.
std::vector<std::byte> acknowledgement(FrameKind kind, std::uint64_t count, std::uint64_t number = 0) {
  std::vector<std::byte> body;
  if (kind == FrameKind::message) ByteWriter(body).number(std::uint64_t{0});
  ByteWriter(body).number(count);
  return tagged(kind, body, number);
}

TEST(TransportMachine, RefusesAcknowledgementsOfWhatWasNotSent) {
  for (auto kind : {FrameKind::message, FrameKind::heartbeat, FrameKind::farewell}) {
    Pair pair;
    pair.join();
    ASSERT_TRUE(pair.initiator.send(bytes_of("a"), pair.now));
    ASSERT_TRUE(pair.initiator.send(bytes_of("b"), pair.now));

    pair.initiator.receive(acknowledgement(kind, 3), pair.now);

    auto events = pair.initiator.take_events();
    EXPECT_EQ(story_of(events), "lost corrupt");
    EXPECT_EQ(reason_in(events), "rank 0 acknowledged 3 messages; 0 to 2 are possible");
  }
}

TEST(TransportMachine, RefusesAcknowledgementsThatGoBack) {
  Pair pair;
  pair.join();
  ASSERT_TRUE(pair.initiator.send(bytes_of("a"), pair.now));
  ASSERT_TRUE(pair.initiator.send(bytes_of("b"), pair.now));
  pair.initiator.receive(acknowledgement(FrameKind::heartbeat, 2), pair.now);
  ASSERT_EQ(story_of(pair.initiator.take_events()), "");

  pair.initiator.receive(acknowledgement(FrameKind::heartbeat, 1, 1), pair.now);

  EXPECT_EQ(reason_in(pair.initiator.take_events()), "rank 0 acknowledged 1 messages; 2 to 2 are possible");
}

TEST(TransportMachine, BoundsWhatWaitsForASlowReader) {
  auto options = options_of(Pair::Side::initiator);
  options.limits.queued_bytes = 1000;
  Pair pair(options);
  pair.join();
  std::vector<std::byte> message(100);

  int sent = 0;
  while (pair.initiator.send(message, pair.now)) ++sent;

  EXPECT_EQ(sent, 7);  // of 137 bytes each
  EXPECT_LE(pair.initiator.output_bytes(), 1000U);
  auto refused = pair.initiator.send(message, pair.now);
  EXPECT_EQ(refused.error().code, core::Errc::unavailable);
  EXPECT_THAT(refused.error().message, HasSubstr("959 bytes wait for rank 0"));
  pair.settle();
  EXPECT_TRUE(pair.initiator.send(message, pair.now));
}

TEST(TransportMachine, RefusesToSendAMessageAboveTheCap) {
  Pair pair;
  pair.join();

  auto refused = pair.initiator.send(std::vector<std::byte>(kMaxFrameBytes), pair.now);

  EXPECT_EQ(refused.error().code, core::Errc::invalid_argument);
  EXPECT_TRUE(pair.initiator.send(std::vector<std::byte>(TransportMachine::kMaxMessageBytes), pair.now));
  pair.settle();
  EXPECT_EQ(pair.acceptor.take_events().size(), 1U);
}

TEST(TransportMachine, AFarewellComesAfterAllThatWasSent) {
  Pair pair;
  pair.join();
  ASSERT_TRUE(pair.initiator.send(bytes_of("last"), pair.now));
  ASSERT_TRUE(pair.acceptor.send(bytes_of("answer"), pair.now));

  pair.initiator.leave(pair.now);
  pair.settle();

  EXPECT_EQ(story_of(pair.acceptor.take_events()), "received last, left");
  EXPECT_EQ(story_of(pair.initiator.take_events()), "received answer, left");
  EXPECT_EQ(pair.acceptor.send(bytes_of("x"), pair.now).error().code, core::Errc::peer_lost);
}

TEST(TransportMachine, BothMayLeaveAtOnce) {
  Pair pair;
  pair.join();

  pair.initiator.leave(pair.now);
  pair.acceptor.leave(pair.now);
  pair.settle();

  EXPECT_EQ(story_of(pair.acceptor.take_events()), "left");
  EXPECT_EQ(story_of(pair.initiator.take_events()), "left");
}

TEST(JobToken, TravelsAsHexadecimalDigits) {
  auto token = random_token();

  ASSERT_TRUE(token);
  EXPECT_EQ(to_hex(*token).size(), 64U);
  EXPECT_EQ(*token_from_hex(to_hex(*token)), *token);
  EXPECT_NE(*random_token(), *token);
}

TEST(JobToken, RefusesWhatIsNotOne) {
  EXPECT_FALSE(token_from_hex(""));
  EXPECT_FALSE(token_from_hex(std::string(63, 'a')));
  EXPECT_FALSE(token_from_hex(std::string(66, 'a')));
  EXPECT_FALSE(token_from_hex(std::string(63, 'a') + "g"));
}

}  // namespace
}  // namespace troupe::actors
