#include "apps/troupe/checkpoint/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace troupe::apps {

core::Result<MappedFile> MappedFile::open(const std::string& path) {
  auto failure = [&path](int error) {
    return core::fail(error == ENOENT ? core::Errc::not_found : core::Errc::io, "can not read \"{}\": {}",
                      path, std::generic_category().message(error));
  };
  // Opening a pipe would wait for its writer.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return failure(errno);
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file);
    return core::fail(core::Errc::invalid_argument, "\"{}\" is no regular file; give the file itself", path);
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) {
    ::close(file);
    return MappedFile(std::span<const std::byte>{});
  }
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  const int error = errno;
  ::close(file);
  if (memory == MAP_FAILED) return failure(error);
  return MappedFile({static_cast<const std::byte*>(memory), size});
}

void MappedFile::release(std::span<const std::byte> part) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = static_cast<std::size_t>(part.data() - bytes_.data()) / page * page;
  const auto end =
      std::min(static_cast<std::size_t>(part.data() - bytes_.data()) + part.size(), bytes_.size());
  if (end > begin) ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace troupe::apps
