#include "core/result.hpp"

namespace troupe::core {

const char* to_string(Errc code) noexcept {
  switch (code) {
    case Errc::invalid_argument:
      return "invalid_argument";
    case Errc::not_found:
      return "not_found";
    case Errc::already_exists:
      return "already_exists";
    case Errc::unavailable:
      return "unavailable";
    case Errc::io:
      return "io";
    case Errc::corrupt:
      return "corrupt";
    case Errc::mismatch:
      return "mismatch";
    case Errc::timeout:
      return "timeout";
    case Errc::peer_lost:
      return "peer_lost";
    case Errc::aborted:
      return "aborted";
    case Errc::stale_epoch:
      return "stale_epoch";
    case Errc::out_of_memory:
      return "out_of_memory";
    case Errc::numeric:
      return "numeric";
    case Errc::internal:
      return "internal";
  }
  return "internal";
}

}  // namespace troupe::core
