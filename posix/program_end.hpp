#pragma once

#include <exception>
#include <new>
#include <string_view>
#include <system_error>

namespace troupe::posix {

/// While it lives, what cannot be returned as an error ends this process with words instead of abort():
/// memory that runs out in any thread, fiber or noexcept function, and system errors that nobody caught, such
/// as those of threads that cannot be started. The last one made counts. Programs have one, libraries none.
class NamedProgram {
 public:
  /// `name` must outlive it; `failed` is the exit code.
  NamedProgram(const char* name, int failed);
  ~NamedProgram();
  NamedProgram(const NamedProgram&) = delete;
  NamedProgram& operator=(const NamedProgram&) = delete;

 private:
  const char* former_name_;
  int former_exit_code_;
  std::new_handler former_new_handler_;
  std::terminate_handler former_terminate_;
};

inline constexpr std::string_view kNoMemory =
    "there is no memory left for this; give it more (ulimit -v), or ask for less";

/// What a system error means, with what to do about it where that is known.
std::string_view advice_for(const std::error_code& error);

/// Ends this process with a line on standard error that begins with the program's name, and with its exit
/// code. Allocates nothing, so that handlers of signals may call it.
[[noreturn]] void end_program(std::string_view why) noexcept;

}  // namespace troupe::posix
