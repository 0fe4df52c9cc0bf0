#include "posix/standard_streams.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/errors.hpp"

namespace troupe::posix {

void open_missing_standard_streams() {
  // open() takes the lowest number that is free.
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd >= 0) ::close(fd);
}

void tell(std::FILE* to, std::string_view text) {
  // What fails here leaves the stream's error flag set.
  [[maybe_unused]] const auto written = std::fwrite(text.data(), 1, text.size(), to);
}

core::Result<void> flush_standard_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  const auto why = std::make_error_code(errno != 0 ? static_cast<std::errc>(errno) : std::errc::io_error);
  return core::fail(core::Errc::io, "cannot write to standard output: {}", why.message());
}

}  // namespace troupe::posix
