#include "actors/world/transport/sealed_frames.hpp"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::actors {

namespace {

using core::Errc;
using core::Result;

constexpr std::string_view kMagic = "troupe launch 1\n";
constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kTagBytes = crypto_aead_xchacha20poly1305_ietf_ABYTES;
static_assert(crypto_aead_xchacha20poly1305_ietf_KEYBYTES == 32);

unsigned char* octets(char* text) {
  return reinterpret_cast<unsigned char*>(text);
}
const unsigned char* octets(const char* text) {
  return reinterpret_cast<const unsigned char*>(text);
}
const unsigned char* octets(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

/// The place of the frame in its direction. Under one key no two frames have the same.
std::array<unsigned char, crypto_aead_xchacha20poly1305_ietf_NPUBBYTES> place_of(std::uint64_t frame) {
  std::array<unsigned char, crypto_aead_xchacha20poly1305_ietf_NPUBBYTES> place{};
  for (std::size_t i = 0; i < sizeof frame; ++i) {
    place[i] = static_cast<unsigned char>(frame >> (8 * i));
  }
  return place;
}

std::string length_of(std::size_t bytes) {
  std::string text(kLengthBytes, '\0');
  for (std::size_t i = 0; i < kLengthBytes; ++i) text[i] = static_cast<char>(bytes >> (8 * i));
  return text;
}

std::size_t read_length(std::string_view text) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) bytes |= std::size_t{octets(text.data())[i]} << (8 * i);
  return bytes;
}

std::string_view text_of(const Nonce& nonce) {
  return {reinterpret_cast<const char*>(nonce.data()), nonce.size()};
}

std::array<std::byte, 32> key_of(const JobToken& secret, std::string_view direction, std::string_view client,
                                 std::string_view server) {
  const std::string transcript = std::string(kMagic).append(direction).append(client).append(server);
  return prove(secret, std::as_bytes(std::span(transcript)));
}

}  // namespace

SealedFrames::SealedFrames(const JobToken& secret, Side side)
    : secret_(secret), side_(side), nonce_(random_nonce()) {}

std::string SealedFrames::introduction() const {
  return std::string(kMagic).append(text_of(nonce_));
}

std::string SealedFrames::seal(std::string_view text) {
  CHECK(met_, "a frame is sealed for a peer that has introduced itself");
  CHECK(text.size() <= kMostBytes, "a frame has at most 16 MiB");
  std::string frame = length_of(text.size());
  frame.resize(kLengthBytes + text.size() + kTagBytes);
  const auto place = place_of(sent_++);
  crypto_aead_xchacha20poly1305_ietf_encrypt(octets(frame.data() + kLengthBytes), nullptr,
                                             octets(text.data()), text.size(), octets(frame.data()),
                                             kLengthBytes, nullptr, place.data(), octets(send_key_.data()));
  return frame;
}

Result<void> SealedFrames::meet() {
  const std::size_t known = std::min(arrived_.size(), kMagic.size());
  if (std::string_view(arrived_).substr(0, known) != kMagic.substr(0, known)) {
    return core::fail(Errc::mismatch, "expected a launcher of Troupe of the same version, found {}",
                      core::quoted_excerpt(arrived_));
  }
  if (arrived_.size() < kMagic.size() + sizeof(Nonce)) return {};
  const std::string theirs = arrived_.substr(kMagic.size(), sizeof(Nonce));
  arrived_.erase(0, kMagic.size() + sizeof(Nonce));
  const bool is_client = side_ == Side::client;
  const std::string own(text_of(nonce_));
  const std::string& client = is_client ? own : theirs;
  const std::string& server = is_client ? theirs : own;
  const Key to_server = key_of(secret_, "to the server", client, server);
  const Key to_client = key_of(secret_, "to the client", client, server);
  send_key_ = is_client ? to_server : to_client;
  receive_key_ = is_client ? to_client : to_server;
  met_ = true;
  return {};
}

Result<std::optional<std::string>> SealedFrames::next() {
  if (!met_) TRY(meet());
  if (!met_ || arrived_.size() < kLengthBytes) return std::nullopt;
  const std::size_t bytes = read_length(arrived_);
  if (bytes > (received_ == 0 ? kMostBytesOfFirst : kMostBytes)) {
    return core::fail(Errc::corrupt, "expected a frame of at most {} bytes, found {}",
                      received_ == 0 ? kMostBytesOfFirst : kMostBytes, bytes);
  }
  if (arrived_.size() < kLengthBytes + bytes + kTagBytes) return std::nullopt;
  std::string text(bytes, '\0');
  const auto place = place_of(received_);
  const int status = crypto_aead_xchacha20poly1305_ietf_decrypt(
      octets(text.data()), nullptr, nullptr, octets(arrived_.data() + kLengthBytes), bytes + kTagBytes,
      octets(arrived_.data()), kLengthBytes, place.data(), octets(receive_key_.data()));
  if (status != 0) {
    return core::fail(Errc::corrupt, "{}",
                      received_ == 0 ? "it has another secret; give all launchers the same one"
                                     : "what it sends was changed on the way");
  }
  ++received_;
  arrived_.erase(0, kLengthBytes + bytes + kTagBytes);
  return text;
}

}  // namespace troupe::actors
