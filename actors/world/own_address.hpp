#pragma once

#include <cstdint>
#include <string>

#include "core/result.hpp"

namespace troupe::actors {

/// The address that this host uses to reach `host`, a name or a number: through it `host`, and others in the
/// same place, can reach this host. Sends nothing. Errc::unavailable names a host that is unknown or to which
/// there is no route.
core::Result<std::string> own_address_towards(const std::string& host, std::uint16_t port);

/// Whether the address means the host itself, wherever it is used: "localhost", 127.x.x.x, "::1" in any form.
bool is_loopback(const std::string& host);

}  // namespace troupe::actors
