#include "actors/world/transport/binding.hpp"

#include <fcntl.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <vector>

#include "actors/world/own_address.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

using asio::ip::tcp;
using core::Errc;

namespace {

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

}  // namespace

core::Result<void> listen_at(const TcpOptions& options, tcp::resolver& resolver, tcp::acceptor& acceptor) {
  std::error_code error;
  const auto found =
      resolver.resolve(options.address, std::to_string(options.port), tcp::resolver::numeric_service, error);
  if (error) {
    return core::fail(Errc::invalid_argument,
                      "rank 0 is to listen at \"{}\", which is not known here: {}; set MASTER_ADDR to a name "
                      "or an address of the host of rank 0",
                      options.address, error.message());
  }
  for (const auto& place : places_to_bind(found, options)) {
    error = bind_to(place, acceptor);
    // A name may also mean addresses that this host does not have; the others come to one that it has.
    if (error != std::errc::address_not_available && error != std::errc::address_family_not_supported) break;
  }
  if (!error) return {};
  return core::fail(Errc::io, "rank 0 cannot listen at {} port {}: {}; choose another port or address",
                    options.address, options.port, error.message());
}

}  // namespace troupe::actors
