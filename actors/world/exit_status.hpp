#pragma once

#include <string>

#include "core/result.hpp"

namespace troupe::actors {

// Exit codes by which a rank says more than "failed".
/// The outer scheduler is asked to requeue; the launcher does not restart.
inline constexpr int kExitTemporaryFailure = 75;
/// The rank ended because another one did: this rank is never the cause.
inline constexpr int kExitFenced = 96;
/// The rank found no usable checkpoint; the launcher does not restart.
inline constexpr int kExitNoCheckpoint = 97;

/// The exit code of a rank's process that ends with this Error.
inline int exit_code_of(const core::Error& error) {
  switch (error.code) {
    case core::Errc::invalid_argument:
      return 2;
    case core::Errc::peer_lost:
    case core::Errc::stale_epoch:
    case core::Errc::timeout:  // of a wait for others
      return kExitFenced;
    default:
      return 1;
  }
}

/// How a process ended: by exit(code), or by a signal if `signal` is not 0.
struct ExitStatus {
  int code = 0;
  int signal = 0;

  bool success() const { return code == 0 && signal == 0; }
  friend bool operator==(const ExitStatus&, const ExitStatus&) = default;
};

/// "exit code 3", or "SIGKILL (signal 9)".
std::string to_string(ExitStatus status);
/// "SIGKILL"; "signal 40" for those without a name.
std::string signal_name(int signal);

}  // namespace troupe::actors
