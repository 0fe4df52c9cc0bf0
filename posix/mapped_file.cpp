#include "posix/mapped_file.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <system_error>

#include "core/errors.hpp"
#include "posix/program_end.hpp"

namespace troupe::posix {

/// What the handler of SIGBUS knows about a mapped file. Guards are used again and never freed, so that the
/// handler may walk their list without a lock.
struct MappedFile::Guard {
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::size_t> bytes{0};  ///< 0: free
  std::size_t mapped = 0;             ///< whole pages
  std::string name;                   ///< changes only while it is free
  Guard* next = nullptr;
};

namespace {

// A signal's handler gets no context of ours, so these belong to the process.
std::atomic<MappedFile::Guard*> guards{nullptr};
struct sigaction former {};

void end_if_file_is_gone(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (const auto* guard = guards.load(); guard != nullptr; guard = guard->next) {
    const std::size_t bytes = guard->bytes;
    if (address < guard->begin || bytes == 0 || address - guard->begin >= guard->mapped) continue;
    std::array<char, 4600> words;
    const auto end = fmt::format_to_n(words.data(), words.size(),
                                      "{} became shorter while it was read, or its disk failed: it had {} "
                                      "bytes, and byte {} is not there; start again when nobody writes to it",
                                      guard->name, bytes, address - guard->begin)
                         .out;
    end_program({words.data(), static_cast<std::size_t>(end - words.data())});
  }
  // Not ours: the instruction is tried again, and fails as it would have.
  ::sigaction(SIGBUS, &former, nullptr);
}

MappedFile::Guard* guard_for(std::span<const std::byte> bytes, std::string name) {
  static std::mutex mutex;  // guards the choice of a free guard, and the list's beginning
  const std::lock_guard lock(mutex);
  if (guards.load() == nullptr) {
    struct sigaction ours {};
    ours.sa_sigaction = end_if_file_is_gone;
    ours.sa_flags = SA_SIGINFO;
    ::sigaction(SIGBUS, &ours, &former);
  }
  auto* guard = guards.load();
  while (guard != nullptr && guard->bytes != 0) guard = guard->next;
  const bool is_new = guard == nullptr;
  if (is_new) guard = new MappedFile::Guard;
  guard->name = std::move(name);
  guard->begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  guard->mapped = (bytes.size() + page - 1) / page * page;
  guard->bytes = bytes.size();
  if (is_new) {
    guard->next = guards;
    guards = guard;
  }
  return guard;
}

}  // namespace

core::Result<MappedFile> MappedFile::open(const Descriptor& file, std::string name) {
  struct stat status {};
  const bool known = ::fstat(file.get(), &status) == 0;
  const auto size = known ? static_cast<std::size_t>(status.st_size) : 0;
  void* memory = size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0) : nullptr;
  const int error = errno;
  if (!known || memory == MAP_FAILED)
    return core::fail(core::Errc::io, "cannot map \"{}\": {}", name, std::generic_category().message(error));
  const std::span bytes(static_cast<const std::byte*>(memory), size);
  return MappedFile(bytes, size > 0 ? guard_for(bytes, std::move(name)) : nullptr);
}

void MappedFile::release(std::span<const std::byte> part) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = static_cast<std::size_t>(part.data() - bytes_.data()) / page * page;
  const auto end =
      std::min(static_cast<std::size_t>(part.data() - bytes_.data()) + part.size(), bytes_.size());
  if (end > begin) ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (guard_ != nullptr) guard_->bytes = 0;
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace troupe::posix
