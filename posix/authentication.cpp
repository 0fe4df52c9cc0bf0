#include "posix/authentication.hpp"

#include <sodium.h>

#include "core/errors.hpp"

namespace troupe::posix {
namespace {

unsigned char* raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

static_assert(sizeof(JobToken) == crypto_auth_hmacsha256_KEYBYTES);
static_assert(sizeof(Proof) == crypto_auth_hmacsha256_BYTES);

}  // namespace

core::Result<JobToken> random_token() {
  if (sodium_init() < 0) {
    return core::fail(core::Errc::unavailable,
                      "libsodium found no source of random numbers; check that /dev/urandom is there");
  }
  JobToken token;
  randombytes_buf(token.data(), token.size());
  return token;
}

Nonce random_nonce() {
  CHECK(sodium_init() >= 0, "libsodium needs the operating system's source of random numbers");
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

std::string to_hex(const JobToken& token) {
  std::string text(2 * token.size() + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), raw(token.data()), token.size());
  text.pop_back();
  return text;
}

core::Result<JobToken> token_from_hex(std::string_view text) {
  JobToken token;
  std::size_t bytes = 0;
  int status =
      sodium_hex2bin(raw(token.data()), token.size(), text.data(), text.size(), nullptr, &bytes, nullptr);
  if (status != 0 || bytes != token.size() || text.size() != 2 * token.size()) {
    return core::fail(core::Errc::invalid_argument,
                      "a job token is {} hexadecimal digits, found {} characters; let `troupe launch` set "
                      "TROUPE_JOB_TOKEN, or give all ranks the same 64 digits",
                      2 * token.size(), text.size());
  }
  return token;
}

Proof prove(const JobToken& token, std::span<const std::byte> transcript) {
  Proof proof;
  crypto_auth_hmacsha256(raw(proof.data()), raw(transcript.data()), transcript.size(), raw(token.data()));
  return proof;
}

bool is_proof(const Proof& proof, const JobToken& token, std::span<const std::byte> transcript) {
  Proof expected = prove(token, transcript);
  return sodium_memcmp(proof.data(), expected.data(), proof.size()) == 0;
}

}  // namespace troupe::posix
