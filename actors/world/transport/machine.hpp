#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "actors/world/transport/authentication.hpp"
#include "actors/world/transport/frame.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::actors {

struct TransportLimits {
  std::chrono::nanoseconds heartbeat = std::chrono::milliseconds(500);  ///< at most this long without a frame
  std::chrono::nanoseconds silence = std::chrono::seconds(5);  ///< a peer silent for this long is lost
  std::size_t queued_bytes = std::size_t{8} << 20;             ///< waiting to be taken by the wire
};

struct TransportOptions {
  enum class Side : std::uint8_t { initiator, acceptor };

  Side side = Side::initiator;
  std::string job;  ///< at most kMaxJobBytes; must be the same on both sides, and is never on the wire
  core::Rank self{};
  core::Rank peer{};  ///< initiator: the rank that must answer
  JobToken token{};
  Nonce nonce{};  ///< never used before
  TransportLimits limits;
  /// Acceptor: whether this rank may join; asked after it has proved that it knows the token. Errc::aborted:
  /// the job is ending.
  std::function<core::Result<void>(core::Rank)> admit;
};

/// Both sides have proved that they know the job's token; messages flow.
struct Joined {
  core::Rank peer{};
};
struct Received {
  std::vector<std::byte> message;
};
/// The peer has said farewell: everything that it sent has arrived.
struct Left {};
/// Nothing more will arrive. `unacknowledged` messages of ours may not have arrived.
struct Lost {
  core::Error why;
  std::uint64_t unacknowledged = 0;
};
using TransportEvent = std::variant<Joined, Received, Left, Lost>;

/// One connection of the control transport without its wire: bytes in, events and bytes out. It does no I/O
/// and knows no clock: time is passed in, from any origin, and never goes back.
///
///     initiator            acceptor
///       hello      -->                     who I am, my nonce
///                  <--   challenge         my nonce, proof over both
///       proof      -->                     proof over both
///                  <--   welcome           joined
///       message, heartbeat <--> message, heartbeat
///       farewell   <-->  farewell          left
///
/// TR-1: every message sent is delivered at most once and in order, or the sender gets Left or Lost. TR-2:
/// until a peer has proved itself it makes us hold at most kMaxHandshakeFrameBytes and one read's bytes.
/// TR-3: it learns nothing about the job but this rank's number. TR-4: each frame after the handshake has a
/// tag, under a key of this connection and direction, with the frame's number: one that was changed,
/// repeated, left out, moved or comes from elsewhere ends the connection. Nothing is encrypted: whoever can
/// read the wire reads messages.
class TransportMachine {
 public:
  using Time = std::chrono::nanoseconds;

  TransportMachine(TransportOptions options, Time now);

  void receive(std::span<const std::byte> bytes, Time now);
  /// The wire is gone. `why` says how, for example "connection reset by peer"; `absence`, for how long this
  /// process did not run just before: a peer that has waited for it is not to blame.
  void disconnected(std::string_view why, Time absence = {});
  /// To be called at deadline(): sends heartbeats and detects silence.
  void tick(Time now);
  Time deadline() const;

  /// Errc::unavailable if the peer has not joined or the queue is full, Errc::invalid_argument for a message
  /// above kMaxMessageBytes, Errc::peer_lost after the end. Nothing is sent then.
  core::Result<void> send(std::span<const std::byte> message, Time now);
  static constexpr std::size_t kMaxMessageBytes = kMaxFrameBytes - 64;

  /// Says farewell after what was sent before. Messages of the peer still arrive until its own farewell.
  void leave(Time now);
  /// Ends immediately: for a peer that breaks the rules. An acceptor tells it why during the handshake; not
  /// if that is Errc::aborted, since whoever comes to a job that is ending may belong to what follows it.
  void fail(core::Error why);

  /// The next bytes for the wire, at most `limit`.
  std::vector<std::byte> take_output(std::size_t limit);
  std::size_t output_bytes() const { return output_.size() - output_taken_; }
  std::vector<TransportEvent> take_events() { return std::exchange(events_, {}); }

  bool is_joined() const { return state_ == State::joined || state_ == State::leaving; }
  /// Nothing will happen any more; remaining output may be flushed, then the wire is useless.
  bool is_over() const { return state_ == State::over; }

 private:
  enum class State : std::uint8_t {
    expects_hello,
    expects_challenge,
    expects_proof,
    expects_welcome,
    joined,
    leaving,
    over
  };

  core::Result<void> take_frame(std::span<const std::byte> frame, Time now);
  core::Result<void> handle(FrameKind kind, std::span<const std::byte> body, Time now);
  core::Result<void> on_hello(ByteReader body, Time now);
  core::Result<void> on_challenge(ByteReader body, Time now);
  core::Result<void> on_proof(ByteReader body, Time now);
  core::Result<void> on_message(ByteReader body);
  core::Result<void> on_farewell(ByteReader body, Time now);
  core::Result<void> acknowledge(std::uint64_t count);
  core::Result<void> check_greeting(ByteReader& body) const;
  core::Result<void> check_length(std::size_t length) const;

  core::Error unproven() const;
  Proof proof_of(std::string_view who) const;
  Proof key_of(bool acceptors) const;
  std::vector<std::byte> transcript(std::string_view who) const;
  void join(Time now);
  void lose(core::Error why);
  template <class Fill>
  void put(FrameKind kind, Time now, Fill&& fill);
  std::string peer_name() const;
  bool is_acceptor() const { return options_.side == TransportOptions::Side::acceptor; }

  TransportOptions options_;
  State state_;
  core::Rank peer_;
  Nonce peer_nonce_{};
  Time heard_;
  Time spoke_;
  std::vector<std::byte> input_;
  std::vector<std::byte> output_;
  std::size_t output_taken_ = 0;
  std::uint64_t sent_ = 0;          ///< also the sequence of the next message
  std::uint64_t acknowledged_ = 0;  ///< how many of those were acknowledged
  std::uint64_t received_ = 0;
  Proof own_key_{};  ///< of tags
  Proof peer_key_{};
  std::uint64_t frames_sent_ = 0;  ///< since the handshake
  std::uint64_t frames_received_ = 0;
  std::vector<TransportEvent> events_;
};

}  // namespace troupe::actors
