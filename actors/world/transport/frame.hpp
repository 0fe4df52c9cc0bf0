#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace troupe::actors {

/// A frame consists of its length (u32, of what follows), its kind (u8), its body and, after the handshake, a
/// tag (16 bytes). Numbers are little endian. The kinds are on the wire: only append.
enum class FrameKind : std::uint8_t {
  hello = 1,      ///< initiator: magic, version, rank, nonce
  challenge = 2,  ///< acceptor: magic, version, rank, nonce, proof
  proof = 3,      ///< initiator: proof
  welcome = 4,    ///< acceptor: nothing
  refusal = 5,    ///< acceptor, instead of challenge or welcome: a sentence
  message = 6,    ///< sequence, acknowledged, payload
  heartbeat = 7,  ///< acknowledged
  farewell = 8,   ///< acknowledged; nothing follows it
};

inline constexpr std::uint32_t kTransportMagic = 0x45505254;  // "TRPE" as bytes
inline constexpr std::uint16_t kTransportVersion = 3;
inline constexpr std::size_t kFrameHeaderBytes = 5;
/// The largest permitted length: for frames of an authenticated peer, and for anyone's.
inline constexpr std::size_t kMaxFrameBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxHandshakeFrameBytes = 512;
inline constexpr std::size_t kMaxJobBytes = 128;

/// Appends little-endian numbers and bytes.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& out) : out_(out) {}

  template <std::integral T>
  ByteWriter& number(T value) {
    auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i) out_.push_back(static_cast<std::byte>(bits >> (8 * i)));
    return *this;
  }
  ByteWriter& bytes(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  ByteWriter& text(std::string_view text) { return bytes(std::as_bytes(std::span(text))); }

 private:
  std::vector<std::byte>& out_;
};

/// Reads them back. Missing data reads as zero and makes ok() false.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> in) : in_(in) {}

  template <std::integral T>
  T number() {
    std::make_unsigned_t<T> bits = 0;
    auto raw = take(sizeof(T));
    for (std::size_t i = 0; i < raw.size(); ++i) {
      bits = static_cast<std::make_unsigned_t<T>>(
          bits | (static_cast<std::make_unsigned_t<T>>(std::to_integer<std::uint8_t>(raw[i])) << (8 * i)));
    }
    return static_cast<T>(bits);
  }
  template <class Array>
  Array array() {
    Array out{};
    auto raw = take(out.size());
    std::copy(raw.begin(), raw.end(), out.begin());
    return out;
  }
  std::span<const std::byte> rest() { return take(in_.size()); }
  bool ok() const { return ok_; }
  bool is_empty() const { return in_.empty(); }

 private:
  std::span<const std::byte> take(std::size_t bytes) {
    if (bytes > in_.size()) {
      ok_ = false;
      return {};
    }
    auto taken = in_.first(bytes);
    in_ = in_.subspan(bytes);
    return taken;
  }

  std::span<const std::byte> in_;
  bool ok_ = true;
};

}  // namespace troupe::actors
