#include "posix/small_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "posix/descriptor.hpp"

namespace troupe::posix {

std::optional<std::string> read_small_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return std::nullopt;
  std::string text;
  std::array<char, 4096> part;
  while (true) {
    const ssize_t count = ::read(file.get(), part.data(), part.size());
    if (count > 0) {
      text.append(part.data(), static_cast<std::size_t>(count));
    } else if (count == 0) {
      return text;
    } else if (errno != EINTR) {
      return std::nullopt;
    }
  }
}

}  // namespace troupe::posix
