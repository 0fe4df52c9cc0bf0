#include "gpu/collective/secret.hpp"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/errors.hpp"

namespace troupe::gpu {

core::Result<std::string> make_secret() {
  std::array<unsigned char, 16> bytes{};
  // This few bytes are returned in one call, which no signal interrupts.
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return core::fail(core::Errc::unavailable,
                      "no random bytes from the operating system: {}; getrandom is needed",
                      std::strerror(errno));
  }
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

}  // namespace troupe::gpu
