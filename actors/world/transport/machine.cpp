#include "actors/world/transport/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "actors/world/transport/frame_tag.hpp"
#include "core/errors.hpp"

namespace troupe::actors {
namespace {

using core::Errc;

/// What an unknown program wrote, made printable on one line of a log.
std::string printable(std::span<const std::byte> bytes, std::size_t limit) {
  std::string text;
  for (std::byte byte : bytes.first(std::min(bytes.size(), limit))) {
    int character = std::to_integer<int>(byte);
    text.push_back(std::isprint(character) != 0 ? static_cast<char>(character) : '.');
  }
  return text;
}

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

TransportMachine::TransportMachine(TransportOptions options, Time now)
    : options_(std::move(options)), peer_(options_.peer), heard_(now), spoke_(now) {
  CHECK(!options_.job.empty() && options_.job.size() <= kMaxJobBytes, "a job has a name of bounded length");
  state_ = is_acceptor() ? State::expects_hello : State::expects_challenge;
  if (is_acceptor()) return;
  put(FrameKind::hello, now, [&](ByteWriter out) {
    out.number(kTransportMagic).number(kTransportVersion).number(options_.self.value).bytes(options_.nonce);
  });
}

std::string TransportMachine::peer_name() const {
  return state_ == State::expects_hello ? "a program that has not said who it is"
                                        : fmt::format("rank {}", peer_.value);
}

template <class Fill>
void TransportMachine::put(FrameKind kind, Time now, Fill&& fill) {
  std::size_t start = output_.size();
  output_.resize(start + 4);
  ByteWriter writer(output_);
  writer.number(static_cast<std::uint8_t>(kind));
  fill(writer);
  const bool has_tag = is_joined();
  std::size_t length = output_.size() - start - 4 + (has_tag ? sizeof(Tag) : 0);
  for (std::size_t i = 0; i < 4; ++i) output_[start + i] = static_cast<std::byte>(length >> (8 * i));
  if (has_tag)
    writer.bytes(tag_of(own_key_, frames_sent_++, std::span<const std::byte>(output_).subspan(start)));
  spoke_ = now;
}

std::vector<std::byte> TransportMachine::take_output(std::size_t limit) {
  std::size_t count = std::min(limit, output_bytes());
  auto first = output_.begin() + static_cast<std::ptrdiff_t>(output_taken_);
  std::vector<std::byte> taken(first, first + static_cast<std::ptrdiff_t>(count));
  output_taken_ += count;
  // Moving the rest down only if it is the smaller part keeps the cost linear.
  if (2 * output_taken_ >= output_.size()) {
    output_.erase(output_.begin(), output_.begin() + static_cast<std::ptrdiff_t>(output_taken_));
    output_taken_ = 0;
  }
  return taken;
}

core::Result<void> TransportMachine::send(std::span<const std::byte> message, Time now) {
  if (state_ != State::joined) {
    bool ended = state_ == State::over || state_ == State::leaving;
    return core::fail(ended ? Errc::peer_lost : Errc::unavailable, "the connection to {} {}", peer_name(),
                      ended ? "is closed" : "is not made yet; send after it has joined");
  }
  if (message.size() > kMaxMessageBytes) {
    return core::fail(Errc::invalid_argument,
                      "a control message has at most {} bytes, found {}; tensors go by collectives",
                      kMaxMessageBytes, message.size());
  }
  if (output_bytes() + message.size() > options_.limits.queued_bytes) {
    return core::fail(Errc::unavailable,
                      "{} bytes wait for {}, which does not read them; at most {} may: the rank is stuck or "
                      "the network too slow",
                      output_bytes(), peer_name(), options_.limits.queued_bytes);
  }
  put(FrameKind::message, now, [&](ByteWriter out) { out.number(sent_).number(received_).bytes(message); });
  ++sent_;
  return {};
}

void TransportMachine::receive(std::span<const std::byte> bytes, Time now) {
  if (is_over()) return;
  heard_ = is_joined() ? now : heard_;  // a handshake has one silence limit for all of it
  input_.insert(input_.end(), bytes.begin(), bytes.end());
  std::size_t done = 0;
  while (!is_over() && input_.size() - done >= kFrameHeaderBytes) {
    auto rest = std::span<const std::byte>(input_).subspan(done);
    std::size_t length = ByteReader(rest).number<std::uint32_t>();
    if (auto checked = check_length(length); !checked) {
      fail(std::move(checked).error());
      break;
    }
    if (rest.size() < 4 + length) break;
    auto handled = take_frame(rest.first(4 + length), now);
    if (!handled) fail(std::move(handled).error());
    done += 4 + length;
  }
  input_.erase(input_.begin(), input_.begin() + static_cast<std::ptrdiff_t>(done));
}

core::Result<void> TransportMachine::take_frame(std::span<const std::byte> frame, Time now) {
  if (is_joined()) {
    const auto tagged = frame.first(frame.size() - sizeof(Tag));
    const auto tag = ByteReader(frame.last(sizeof(Tag))).array<Tag>();
    if (!is_tag(tag, peer_key_, frames_received_++, tagged)) {
      return core::fail(
          Errc::corrupt,
          "a frame on the connection to {} is not what it sent: its bytes were changed, repeated "
          "or left out on the way, or another program sent it",
          peer_name());
    }
    frame = tagged;
  }
  return handle(static_cast<FrameKind>(frame[4]), frame.subspan(kFrameHeaderBytes), now);
}

core::Result<void> TransportMachine::check_length(std::size_t length) const {
  const std::size_t least = is_joined() ? 1 + sizeof(Tag) : 1;
  const std::size_t limit = is_joined() ? kMaxFrameBytes : kMaxHandshakeFrameBytes;
  if (length >= least && length <= limit) return {};
  if (is_joined()) {
    return core::fail(Errc::corrupt, "{} announced a frame of {} bytes; {} to {} are allowed", peer_name(),
                      length, least, limit);
  }
  return core::fail(Errc::corrupt,
                    "expected a handshake of Troupe, found \"{}\"; another program uses this port",
                    printable(input_, 16));
}

core::Result<void> TransportMachine::handle(FrameKind kind, std::span<const std::byte> body, Time now) {
  ByteReader reader(body);
  if (kind == FrameKind::hello && state_ == State::expects_hello) return on_hello(reader, now);
  if (kind == FrameKind::challenge && state_ == State::expects_challenge) return on_challenge(reader, now);
  if (kind == FrameKind::proof && state_ == State::expects_proof) return on_proof(reader, now);
  if (kind == FrameKind::welcome && state_ == State::expects_welcome) {
    join(now);
    return {};
  }
  if (kind == FrameKind::refusal && !is_acceptor() && !is_joined()) {
    lose({Errc::mismatch, fmt::format("{} refused: {}", peer_name(), printable(body, body.size()))});
    return {};
  }
  if (is_joined()) {
    if (kind == FrameKind::message) return on_message(reader);
    if (kind == FrameKind::heartbeat) return acknowledge(reader.number<std::uint64_t>());
    if (kind == FrameKind::farewell) return on_farewell(reader, now);
  }
  return core::fail(Errc::corrupt, "{} sent a frame of kind {} which has no place here", peer_name(),
                    static_cast<int>(kind));
}

core::Result<void> TransportMachine::check_greeting(ByteReader& body) const {
  auto magic = body.number<std::uint32_t>();
  auto version = body.number<std::uint16_t>();
  if (!body.ok() || magic != kTransportMagic) {
    return core::fail(Errc::corrupt,
                      "expected a handshake of Troupe, found \"{}\"; another program uses this port",
                      printable(std::span<const std::byte>(input_), 16));
  }
  if (version != kTransportVersion) {
    return core::fail(
        Errc::mismatch,
        "expected version {} of the control transport, found {}; run the same build on all ranks",
        kTransportVersion, version);
  }
  return {};
}

core::Result<void> TransportMachine::on_hello(ByteReader body, Time now) {
  TRY(check_greeting(body));
  core::Rank rank{body.number<std::int32_t>()};
  peer_nonce_ = body.array<Nonce>();
  if (!body.ok() || !body.is_empty()) return core::fail(Errc::corrupt, "a hello has the wrong length");
  peer_ = rank;
  state_ = State::expects_proof;
  put(FrameKind::challenge, now, [&](ByteWriter out) {
    out.number(kTransportMagic).number(kTransportVersion).number(options_.self.value).bytes(options_.nonce);
    out.bytes(proof_of("acceptor"));
  });
  return {};
}

core::Result<void> TransportMachine::on_challenge(ByteReader body, Time now) {
  TRY(check_greeting(body));
  core::Rank rank{body.number<std::int32_t>()};
  peer_nonce_ = body.array<Nonce>();
  auto proof = body.array<Proof>();
  if (!body.ok() || !body.is_empty()) return core::fail(Errc::corrupt, "a challenge has the wrong length");
  if (rank != peer_) {
    return core::fail(Errc::mismatch, "expected rank {} at this address, found rank {}", peer_.value,
                      rank.value);
  }
  if (!is_proof(proof, options_.token, transcript("acceptor"))) {
    return tl::unexpected(unproven());
  }
  state_ = State::expects_welcome;
  put(FrameKind::proof, now, [&](ByteWriter out) { out.bytes(proof_of("initiator")); });
  return {};
}

core::Result<void> TransportMachine::on_proof(ByteReader body, Time now) {
  auto proof = body.array<Proof>();
  if (!body.ok() || !body.is_empty() || !is_proof(proof, options_.token, transcript("initiator"))) {
    return tl::unexpected(unproven());
  }
  if (options_.admit) TRY(options_.admit(peer_));
  put(FrameKind::welcome, now, [](ByteWriter) {});
  join(now);
  return {};
}

/// May be told to anyone, so it does not name the job.
core::Error TransportMachine::unproven() const {
  return {Errc::mismatch,
          fmt::format("{} does not prove that it belongs to this start of this job; give all ranks of a job "
                      "the same TROUPE_JOB_TOKEN, and two jobs two ports",
                      peer_name())};
}

/// Both names and both nonces, so that a proof is valid only for this handshake and this direction.
std::vector<std::byte> TransportMachine::transcript(std::string_view who) const {
  const Nonce& acceptors = is_acceptor() ? options_.nonce : peer_nonce_;
  const Nonce& initiators = is_acceptor() ? peer_nonce_ : options_.nonce;
  core::Rank acceptor = is_acceptor() ? options_.self : peer_;
  core::Rank initiator = is_acceptor() ? peer_ : options_.self;
  std::vector<std::byte> text;
  ByteWriter(text)
      .text(who)
      .bytes(acceptors)
      .bytes(initiators)
      .number(acceptor.value)
      .number(initiator.value)
      .text(options_.job);
  return text;
}

Proof TransportMachine::proof_of(std::string_view who) const {
  return prove(options_.token, transcript(who));
}

/// The words begin otherwise than those of proofs, so that no proof is a key.
Proof TransportMachine::key_of(bool acceptors) const {
  return proof_of(acceptors ? "frames of the acceptor" : "frames of the initiator");
}

void TransportMachine::join(Time now) {
  state_ = State::joined;
  own_key_ = key_of(is_acceptor());
  peer_key_ = key_of(!is_acceptor());
  heard_ = now;
  events_.emplace_back(Joined{peer_});
}

core::Result<void> TransportMachine::acknowledge(std::uint64_t count) {
  if (count < acknowledged_ || count > sent_) {
    return core::fail(Errc::corrupt, "{} acknowledged {} messages; {} to {} are possible", peer_name(), count,
                      acknowledged_, sent_);
  }
  acknowledged_ = count;
  return {};
}

core::Result<void> TransportMachine::on_message(ByteReader body) {
  auto sequence = body.number<std::uint64_t>();
  auto acknowledged = body.number<std::uint64_t>();
  auto message = body.rest();
  if (!body.ok() || sequence != received_) {
    return core::fail(Errc::corrupt, "expected message {} of {}, found {}", received_, peer_name(), sequence);
  }
  TRY(acknowledge(acknowledged));
  ++received_;
  events_.emplace_back(Received{{message.begin(), message.end()}});
  return {};
}

core::Result<void> TransportMachine::on_farewell(ByteReader body, Time now) {
  TRY(acknowledge(body.number<std::uint64_t>()));
  if (state_ == State::joined) {
    put(FrameKind::farewell, now, [&](ByteWriter out) { out.number(received_); });
  }
  state_ = State::over;
  events_.emplace_back(Left{});
  return {};
}

void TransportMachine::leave(Time now) {
  if (state_ == State::joined) {
    put(FrameKind::farewell, now, [&](ByteWriter out) { out.number(received_); });
    state_ = State::leaving;
  } else if (!is_joined()) {
    lose({Errc::aborted, "this side left before the handshake had ended"});
  }
}

void TransportMachine::disconnected(std::string_view why, Time absence) {
  if (absence >= options_.limits.silence) {
    return lose({Errc::peer_lost, fmt::format("this process did not run for {:.3g} s (it was stopped, or its "
                                              "host was), and the others have not waited for it",
                                              seconds(absence))});
  }
  lose(
      {Errc::peer_lost, fmt::format("the connection to {} ended without a farewell ({}); its process died or "
                                    "the network between the hosts broke",
                                    peer_name(), why)});
}

void TransportMachine::fail(core::Error why) {
  if (is_acceptor() && !is_joined() && !is_over() && why.code != Errc::aborted) {
    std::size_t length = std::min(why.message.size(), kMaxHandshakeFrameBytes - kFrameHeaderBytes);
    put(FrameKind::refusal, spoke_,
        [&](ByteWriter out) { out.text(std::string_view(why.message).substr(0, length)); });
  }
  lose(std::move(why));
}

void TransportMachine::lose(core::Error why) {
  if (is_over()) return;
  if (is_joined()) {
    output_.clear();
    output_taken_ = 0;
  }
  state_ = State::over;
  events_.emplace_back(Lost{std::move(why), sent_ - acknowledged_});
}

TransportMachine::Time TransportMachine::deadline() const {
  if (is_over()) return Time::max();
  Time silent = heard_ + options_.limits.silence;
  return state_ == State::joined ? std::min(silent, spoke_ + options_.limits.heartbeat) : silent;
}

void TransportMachine::tick(Time now) {
  if (is_over()) return;
  if (now >= heard_ + options_.limits.silence) {
    lose({Errc::timeout,
          fmt::format("nothing was heard from {} for {:.3g} s{}; its process hangs, its host is down or the "
                      "network between is broken",
                      peer_name(), seconds(now - heard_), is_joined() ? "" : " of the handshake")});
  } else if (state_ == State::joined && now >= spoke_ + options_.limits.heartbeat) {
    // A queue that the wire has not emptied already shows that we are alive.
    if (output_bytes() == 0) put(FrameKind::heartbeat, now, [&](ByteWriter out) { out.number(received_); });
    spoke_ = now;
  }
}

}  // namespace troupe::actors
