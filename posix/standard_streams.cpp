#include "posix/standard_streams.hpp"

#include <fcntl.h>
#include <unistd.h>

namespace troupe::posix {

void open_missing_standard_streams() {
  // open() takes the lowest number that is free.
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd >= 0) ::close(fd);
}

}  // namespace troupe::posix
