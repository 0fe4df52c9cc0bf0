#include "actors/world/transport/binding.hpp"

#include <fcntl.h>

#include <algorithm>

#include "actors/world/own_address.hpp"

namespace troupe::actors {

using asio::ip::tcp;

std::vector<tcp::endpoint> places_to_bind(const tcp::resolver::results_type& found,
                                          const TcpOptions& options) {
  std::vector<tcp::endpoint> places;
  for (const auto& entry : found) places.push_back(entry.endpoint());
  const bool only_here =
      std::ranges::all_of(places, [](const auto& place) { return place.address().is_loopback(); });
  if (!options.spans_hosts || !only_here || is_loopback(options.address)) return places;
  return {tcp::endpoint(tcp::v6(), options.port), tcp::endpoint(tcp::v4(), options.port)};
}

std::error_code bind_to(const tcp::endpoint& endpoint, tcp::acceptor& acceptor) {
  std::error_code error;
  std::error_code ignored;
  acceptor.close(ignored);
  acceptor.open(endpoint.protocol(), error);
  if (!error) ::fcntl(acceptor.native_handle(), F_SETFD, FD_CLOEXEC);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(tcp::acceptor::max_listen_connections, error);
  return error;
}

}  // namespace troupe::actors
