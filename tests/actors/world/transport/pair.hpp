#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "actors/world/transport/frame_tag.hpp"
#include "actors/world/transport/machine.hpp"

namespace troupe::actors {

inline std::vector<std::byte> bytes_of(std::string_view text) {
  auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline JobToken token_of(int value) {
  JobToken token;
  token.fill(static_cast<std::byte>(value));
  return token;
}

inline TransportOptions options_of(TransportOptions::Side side) {
  bool is_acceptor = side == TransportOptions::Side::acceptor;
  TransportOptions options{.side = side, .job = "job", .self = {is_acceptor ? 0 : 1}, .token = token_of(7)};
  options.nonce.fill(static_cast<std::byte>(is_acceptor ? 1 : 2));
  return options;
}

/// Two machines and the wire between them, which carries when it is told to.
struct Pair {
  using Side = TransportOptions::Side;

  explicit Pair(TransportOptions left = options_of(Side::initiator),
                TransportOptions right = options_of(Side::acceptor))
      : initiator(std::move(left), now), acceptor(std::move(right), now) {}

  /// Carries until nobody has anything to say.
  void settle() {
    while (initiator.output_bytes() + acceptor.output_bytes() > 0) {
      acceptor.receive(initiator.take_output(SIZE_MAX), now);
      initiator.receive(acceptor.take_output(SIZE_MAX), now);
    }
  }
  void join() {
    settle();
    initiator.take_events();
    acceptor.take_events();
  }

  std::chrono::nanoseconds now{0};
  TransportMachine initiator;
  TransportMachine acceptor;
};

/// A frame as it is on the wire.
inline std::vector<std::byte> frame_of(FrameKind kind, std::span<const std::byte> body) {
  std::vector<std::byte> frame;
  ByteWriter(frame)
      .number(static_cast<std::uint32_t>(body.size() + 1))
      .number(static_cast<std::uint8_t>(kind));
  ByteWriter(frame).bytes(body);
  return frame;
}

/// A frame as rank 0, the acceptor of a Pair, writes it after the handshake.
inline std::vector<std::byte> tagged(FrameKind kind, std::span<const std::byte> body, std::uint64_t number) {
  std::vector<std::byte> transcript;
  ByteWriter(transcript)
      .text("frames of the acceptor")
      .bytes(options_of(TransportOptions::Side::acceptor).nonce)
      .bytes(options_of(TransportOptions::Side::initiator).nonce)
      .number(std::int32_t{0})
      .number(std::int32_t{1})
      .text("job");
  std::vector<std::byte> frame;
  ByteWriter(frame)
      .number(static_cast<std::uint32_t>(1 + body.size() + sizeof(Tag)))
      .number(static_cast<std::uint8_t>(kind))
      .bytes(body);
  const auto tag = tag_of(prove(token_of(7), transcript), number, frame);
  ByteWriter(frame).bytes(tag);
  return frame;
}

/// "joined 1, received x, left, lost timeout", as one line.
inline std::string story_of(const std::vector<TransportEvent>& events) {
  std::string story;
  for (const TransportEvent& event : events) {
    if (!story.empty()) story += ", ";
    if (auto* joined = std::get_if<Joined>(&event)) story += "joined " + std::to_string(joined->peer.value);
    if (auto* received = std::get_if<Received>(&event)) story += "received " + text_of(received->message);
    if (std::holds_alternative<Left>(event)) story += "left";
    if (auto* lost = std::get_if<Lost>(&event))
      story += std::string("lost ") + core::to_string(lost->why.code);
  }
  return story;
}

inline std::string reason_in(const std::vector<TransportEvent>& events) {
  for (const TransportEvent& event : events) {
    if (auto* lost = std::get_if<Lost>(&event)) return lost->why.message;
  }
  return "not lost";
}

}  // namespace troupe::actors
