#include "gpu/collective/shared_memory/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/errors.hpp"
#include "gpu/collective/secret.hpp"
#include "posix/descriptor.hpp"

namespace troupe::gpu {

using posix::Descriptor;

core::Result<SharedSegment> SharedSegment::create(const std::string& name, std::size_t bytes) {
  const Descriptor descriptor(shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  if (descriptor.get() < 0) {
    return core::fail(core::Errc::io, "shared memory: cannot create {}: {}; check /dev/shm", name,
                      std::strerror(errno));
  }
  // Without the reservation a full /dev/shm would end the process with SIGBUS in the middle of an operation.
  int refusal = 0;
  do {
    refusal = posix_fallocate(descriptor.get(), 0, static_cast<off_t>(bytes));
  } while (refusal == EINTR);
  if (refusal != 0) {
    unlink(name);
    return core::fail(core::Errc::out_of_memory,
                      "shared memory: expected {} bytes for {}, found: {}; enlarge /dev/shm (containers: "
                      "--shm-size) or use smaller staging",
                      bytes, name, std::strerror(refusal));
  }
  return map(descriptor.get(), name, bytes);
}

core::Result<SharedSegment> SharedSegment::open(const std::string& name, std::size_t bytes) {
  const Descriptor descriptor(shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
  if (descriptor.get() < 0) {
    return core::fail(core::Errc::io,
                      "shared memory: cannot open {}: {}; the group's ranks must share one /dev/shm and user",
                      name, std::strerror(errno));
  }
  struct stat status {};
  if (fstat(descriptor.get(), &status) != 0 || static_cast<std::size_t>(status.st_size) != bytes) {
    return core::fail(core::Errc::mismatch,
                      "shared memory: expected {} bytes in {}, found {}; do all ranks run the same build?",
                      bytes, name, status.st_size);
  }
  return map(descriptor.get(), name, bytes);
}

core::Result<SharedSegment> SharedSegment::map(int descriptor, const std::string& name, std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  if (memory == MAP_FAILED) {
    return core::fail(core::Errc::out_of_memory, "shared memory: cannot map {} bytes of {}: {}", bytes, name,
                      std::strerror(errno));
  }
  return SharedSegment(BufferView{static_cast<std::byte*>(memory), bytes});
}

void SharedSegment::unlink(const std::string& name) noexcept {
  (void)shm_unlink(name.c_str());
}

SharedSegment::~SharedSegment() {
  if (view_.data != nullptr) munmap(view_.data, view_.bytes);
}

core::Result<std::string> new_segment_name(std::string_view job, std::uint64_t epoch,
                                           std::string_view group) {
  return fmt::format("/troupe-{}-{}-{}-{}", job, epoch, group, TRY(make_secret()));
}

}  // namespace troupe::gpu
