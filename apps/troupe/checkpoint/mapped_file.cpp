#include "apps/troupe/checkpoint/mapped_file.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "core/errors.hpp"

namespace troupe::apps {

core::Result<MappedFile> MappedFile::open(const actors::PosixStorage& storage, const std::string& name) {
  const posix::Descriptor file = TRY(storage.open_file(name));
  struct stat status {};
  const bool known = ::fstat(file.get(), &status) == 0;
  const auto size = known ? static_cast<std::size_t>(status.st_size) : 0;
  void* memory = size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0) : nullptr;
  const int error = errno;
  if (!known || memory == MAP_FAILED)
    return core::fail(core::Errc::io, "cannot map \"{}\": {}", name, std::generic_category().message(error));
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
