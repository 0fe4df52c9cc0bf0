#pragma once

#include "posix/authentication.hpp"

namespace troupe::actors {

using posix::is_proof;
using posix::JobToken;
using posix::Nonce;
using posix::Proof;
using posix::prove;
using posix::random_nonce;
using posix::random_token;
using posix::to_hex;
using posix::token_from_hex;

}  // namespace troupe::actors
