#pragma once

#include <asio/ip/tcp.hpp>

#include "actors/world/transport/tcp.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// Makes the acceptor listen where rank 0 is to, given what its name means here. Errc::invalid_argument for a
/// name that is not known, Errc::io where nobody can listen.
core::Result<void> listen_at(const TcpOptions& options, asio::ip::tcp::resolver& resolver,
                             asio::ip::tcp::acceptor& acceptor);

}  // namespace troupe::actors
