#include "posix/run_delay.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <system_error>

#include "posix/descriptor.hpp"

namespace troupe::posix {

std::chrono::nanoseconds run_delay() {
  // The kernel tells of the thread that opened it, whoever reads.
  thread_local const Descriptor file(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
  std::array<char, 128> text;
  const ssize_t count = file.is_open() ? ::pread(file.get(), text.data(), text.size(), 0) : -1;
  if (count <= 0) return {};
  // "nanoseconds on a processor, nanoseconds of delay, times it was given one"
  const std::string_view line(text.data(), static_cast<std::size_t>(count));
  const auto space = line.find(' ');
  if (space == std::string_view::npos) return {};
  std::int64_t delay = 0;
  const auto [end, error] = std::from_chars(line.data() + space + 1, line.data() + line.size(), delay);
  return error == std::errc() ? std::chrono::nanoseconds(delay) : std::chrono::nanoseconds::zero();
}

}  // namespace troupe::posix
