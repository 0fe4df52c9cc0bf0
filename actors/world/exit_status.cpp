#include "actors/world/exit_status.hpp"

#include <fmt/format.h>
#include <string.h>

namespace troupe::actors {

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

std::string to_string(ExitStatus status) {
  if (status.signal != 0) return fmt::format("{} (signal {})", signal_name(status.signal), status.signal);
  return fmt::format("exit code {}", status.code);
}

}  // namespace troupe::actors
