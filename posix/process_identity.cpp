#include "posix/process_identity.hpp"

#include <sstream>
#include <string>

#include "core/errors.hpp"
#include "posix/small_file.hpp"

namespace troupe::posix {

core::Result<ProcessIdentity> identify(std::int64_t pid) {
  const std::string text = read_small_file(fmt::format("/proc/{}/stat", pid)).value_or("");
  // The second field is the name in parentheses and may contain anything; the third follows the last ')'.
  const auto name_end = text.rfind(')');
  std::uint64_t start_time = 0;
  if (name_end != std::string::npos) {
    std::istringstream rest(text.substr(name_end + 1));
    std::string skipped;
    for (int field = 3; field < 22; ++field) rest >> skipped;
    rest >> start_time;
  }
  if (start_time == 0) {
    return core::fail(core::Errc::not_found,
                      "expected process {} in /proc, found none; ranks of a host must share "
                      "one PID namespace",
                      pid);
  }
  return ProcessIdentity{pid, start_time};
}

}  // namespace troupe::posix
