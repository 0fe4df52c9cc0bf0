#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "actors/world/transport/authentication.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// What two processes that share a secret say to each other over a stream of bytes: frames that nobody else
/// can read, and of which none can be forged, changed, left out, repeated or moved. Each side first sends its
/// introduction, and then frames under keys that are only this connection's and this direction's. Bytes in,
/// bytes out; no I/O. That the stream ends is not authenticated: the frames must say when all is said.
class SealedFrames {
 public:
  enum class Side : std::uint8_t { client, server };
  /// The most bytes of one frame's text.
  static constexpr std::size_t kMostBytes = std::size_t{16} << 20;
  /// The same for the first frame, which comes from somebody who has not yet proved anything.
  static constexpr std::size_t kMostBytesOfFirst = std::size_t{64} << 10;

  SealedFrames(const JobToken& secret, Side side);

  /// Sent before anything else.
  std::string introduction() const;
  /// The frame's bytes. CHECK: not before the peer's introduction is there.
  std::string seal(std::string_view text);

  /// Takes what arrived, in pieces of any size.
  void feed(std::string_view bytes) { arrived_.append(bytes); }
  /// The next whole frame's text, or nothing yet. Errc::mismatch: this is not such a peer. Errc::corrupt: the
  /// peer has another secret, or the frame was tampered with. After an Error nothing more can be read.
  core::Result<std::optional<std::string>> next();
  bool has_met() const { return met_; }
  /// Whether the peer has proved that it knows the secret.
  bool is_proven() const { return received_ > 0; }

 private:
  using Key = std::array<std::byte, 32>;

  core::Result<void> meet();

  const JobToken secret_;
  const Side side_;
  const Nonce nonce_;
  Key send_key_{};
  Key receive_key_{};
  bool met_ = false;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  std::string arrived_;
};

}  // namespace troupe::actors
