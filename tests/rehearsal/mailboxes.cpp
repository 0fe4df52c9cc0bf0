#include "tests/rehearsal/mailboxes.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/errors.hpp"
#include "posix/descriptor.hpp"

namespace troupe::rehearsal {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kBoxBytes = std::size_t{256} << 10;

}  // namespace

/// Zeros, which the memory has at first, are an empty one.
struct Mailboxes::Box {
  std::atomic<std::size_t> bytes;
  std::byte data[kBoxBytes - sizeof(bytes)];
};

core::Result<std::unique_ptr<Mailboxes>> Mailboxes::open(const std::string& name, int members) {
  const auto boxes = static_cast<std::size_t>(members) * static_cast<std::size_t>(members);
  const std::size_t bytes = kPageBytes + sizeof(Box) * boxes;
  const posix::Descriptor file(shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  void* mapped = MAP_FAILED;
  if (file.is_open() && ftruncate(file.get(), static_cast<off_t>(bytes)) == 0)
    mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED)
    return core::fail(core::Errc::io, "shared memory {} of {} bytes: {}", name, bytes, std::strerror(errno));
  return std::unique_ptr<Mailboxes>(new Mailboxes(name, members, bytes, static_cast<std::byte*>(mapped)));
}

Mailboxes::~Mailboxes() {
  if (is_named_) shm_unlink(name_.c_str());
  munmap(memory_, bytes_);
}

void Mailboxes::join() {
  reinterpret_cast<std::atomic<int>*>(memory_)->fetch_add(1);
}

bool Mailboxes::have_all_joined() {
  if (reinterpret_cast<std::atomic<int>*>(memory_)->load() < members_) return false;
  if (is_named_) shm_unlink(name_.c_str());
  is_named_ = false;
  return true;
}

std::size_t Mailboxes::put(int from, int to, const std::byte* data, std::size_t bytes) {
  Box& to_fill = box(from, to);
  if (to_fill.bytes.load(std::memory_order_acquire) != 0) return 0;
  const std::size_t fits = std::min(bytes, sizeof to_fill.data);
  std::memcpy(to_fill.data, data, fits);
  to_fill.bytes.store(fits, std::memory_order_release);
  return fits;
}

std::size_t Mailboxes::take(int from, int to, std::byte* data, std::size_t bytes) {
  Box& to_empty = box(from, to);
  const std::size_t there = std::min(to_empty.bytes.load(std::memory_order_acquire), bytes);
  if (there == 0) return 0;
  std::memcpy(data, to_empty.data, there);
  to_empty.bytes.store(0, std::memory_order_release);
  return there;
}

Mailboxes::Box& Mailboxes::box(int from, int to) {
  return reinterpret_cast<Box*>(memory_ + kPageBytes)[from * members_ + to];
}

}  // namespace troupe::rehearsal
