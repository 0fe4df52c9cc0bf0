#include "actors/world/transport/frame_tag.hpp"

#include <sodium.h>

namespace troupe::actors {
namespace {

static_assert(sizeof(Proof) <= crypto_generichash_KEYBYTES_MAX);
static_assert(sizeof(Tag) >= crypto_generichash_BYTES_MIN);

unsigned char* characters(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
const unsigned char* characters(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

}  // namespace

Tag tag_of(const Proof& key, std::uint64_t number, std::span<const std::byte> frame) {
  std::array<std::byte, sizeof number> digits{};
  for (std::size_t i = 0; i < digits.size(); ++i) digits[i] = static_cast<std::byte>(number >> (8 * i));
  Tag tag{};
  crypto_generichash_state state;
  crypto_generichash_init(&state, characters(key.data()), key.size(), tag.size());
  crypto_generichash_update(&state, characters(digits.data()), digits.size());
  crypto_generichash_update(&state, characters(frame.data()), frame.size());
  crypto_generichash_final(&state, characters(tag.data()), tag.size());
  return tag;
}

bool is_tag(const Tag& tag, const Proof& key, std::uint64_t number, std::span<const std::byte> frame) {
  const Tag expected = tag_of(key, number, frame);
  return sodium_memcmp(tag.data(), expected.data(), tag.size()) == 0;
}

}  // namespace troupe::actors
