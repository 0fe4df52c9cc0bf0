#pragma once

#include <string>

#include "actors/world/transport/authentication.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// The token in a file that all hosts of a job share; whoever comes first makes it. It lasts, for the jobs of
/// one person. Errc::io; Errc::invalid_argument if somebody else can read it, or if it holds no token.
core::Result<JobToken> token_from_file(const std::string& path);

}  // namespace troupe::actors
