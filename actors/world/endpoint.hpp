#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/result.hpp"

namespace troupe::actors {

/// A host, by name or by address, and perhaps a port there.
struct Endpoint {
  std::string host;  ///< an address of IPv6 has no brackets; a link-local one has its zone: "fe80::1%eth0"
  std::optional<std::uint16_t> port;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

/// Reads "host", "host:port", "[::1]", "[::1]:port" and "::1", where two colons or more without brackets are
/// an address of IPv6 without port. Errc::invalid_argument says what was expected.
core::Result<Endpoint> parse_endpoint(std::string_view text);

/// The same without a port: a name or an address, which may be in brackets.
core::Result<std::string> parse_host(std::string_view text);

/// "host:port", with brackets around an address of IPv6.
std::string to_string(const Endpoint& endpoint);

}  // namespace troupe::actors
