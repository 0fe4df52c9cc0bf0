#pragma once

#include <string>

namespace troupe::actors {

/// How a process ended: by exit(code), or by a signal when `signal` is not 0.
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
