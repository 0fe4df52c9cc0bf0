#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "core/result.hpp"

namespace troupe::posix {

/// The secret that all processes of one job share. Any process that knows it may join.
using JobToken = std::array<std::byte, 32>;
/// Used once, so that no recorded handshake can be replayed.
using Nonce = std::array<std::byte, 32>;
/// HMAC-SHA-256 of a transcript under the job token.
using Proof = std::array<std::byte, 32>;

/// From the operating system's generator.
core::Result<JobToken> random_token();
Nonce random_nonce();

/// 64 lower-case hexadecimal digits, the form in which TROUPE_JOB_TOKEN contains it.
std::string to_hex(const JobToken& token);
core::Result<JobToken> token_from_hex(std::string_view text);

Proof prove(const JobToken& token, std::span<const std::byte> transcript);
/// Takes the same time wherever the first difference is.
bool is_proof(const Proof& proof, const JobToken& token, std::span<const std::byte> transcript);

}  // namespace troupe::posix
