#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace troupe::core {

/// xxHash3, 64 bits. Identifies content (plans, streams, traces); no protection against an attacker.
std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed = 0) noexcept;
std::uint64_t hash64(std::string_view text, std::uint64_t seed = 0) noexcept;

/// hash64() of bytes that arrive in pieces.
class HashStream {
 public:
  HashStream();
  HashStream(HashStream&&) noexcept;
  HashStream& operator=(HashStream&&) noexcept;
  ~HashStream();

  void add(std::span<const std::byte> bytes) noexcept;
  /// The hash of all bytes so far.
  std::uint64_t value() const noexcept;
  void reset() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troupe::core
