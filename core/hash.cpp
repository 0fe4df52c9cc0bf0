#include "core/hash.hpp"

#include <xxhash.h>

namespace troupe::core {

std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

std::uint64_t hash64(std::string_view text, std::uint64_t seed) noexcept {
  return hash64(std::as_bytes(std::span(text)), seed);
}

struct HashStream::State {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { XXH3_freeState(xxhash); }

  XXH3_state_t* xxhash = XXH3_createState();
};

HashStream::HashStream() : state_(std::make_unique<State>()) {
  reset();
}
HashStream::HashStream(HashStream&&) noexcept = default;
HashStream& HashStream::operator=(HashStream&&) noexcept = default;
HashStream::~HashStream() = default;

void HashStream::add(std::span<const std::byte> bytes) noexcept {
  XXH3_64bits_update(state_->xxhash, bytes.data(), bytes.size());
}

std::uint64_t HashStream::value() const noexcept {
  return XXH3_64bits_digest(state_->xxhash);
}

void HashStream::reset() noexcept {
  XXH3_64bits_reset(state_->xxhash);
}

}  // namespace troupe::core
