#pragma once

#include <asio/ip/tcp.hpp>
#include <system_error>
#include <vector>

#include "actors/world/transport/tcp.hpp"

namespace troupe::actors {

/// Where rank 0 is to listen, given what its name means here.
std::vector<asio::ip::tcp::endpoint> places_to_bind(const asio::ip::tcp::resolver::results_type& found,
                                                    const TcpOptions& options);
std::error_code bind_to(const asio::ip::tcp::endpoint& endpoint, asio::ip::tcp::acceptor& acceptor);

}  // namespace troupe::actors
