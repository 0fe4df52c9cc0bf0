#include "actors/world/storage/holds.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include "actors/world/storage/posix.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

using core::Errc;
using core::Result;
using posix::Descriptor;

namespace {

constexpr int kTries = 50;
constexpr std::chrono::milliseconds kBetweenTries{20};
constexpr std::size_t kMostText = 512;

/// 0, or why not. EWOULDBLOCK: somebody else has it.
int lock(const Descriptor& file, int how) {
  while (::flock(file.get(), how | LOCK_NB) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

Descriptor open_directory(Storage& storage, std::string_view path) {
  auto* real = dynamic_cast<PosixStorage*>(&storage);
  if (real == nullptr) return {};
  auto directory = real->open_directory(path);
  return directory ? std::move(*directory) : Descriptor();
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : std::string("unknown");
}

/// "job 5f3a (host node7, process 4711)".
std::string read_text(const Descriptor& file) {
  std::string text(kMostText, '\0');
  const auto count = ::pread(file.get(), text.data(), text.size(), 0);
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string beginning_for(const std::string& job) {
  return fmt::format("job {} (", job);
}

Result<void> write_text(const Descriptor& file, const std::string& text) {
  if (::ftruncate(file.get(), 0) == 0 &&
      ::pwrite(file.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()))
    return {};
  return core::fail(Errc::io, "cannot write {}: {}", kOwnerName, std::generic_category().message(errno));
}

}  // namespace

Hold hold_directory(Storage& storage, std::string_view path) {
  Descriptor directory = open_directory(storage, path);
  if (!directory.is_open() || lock(directory, LOCK_EX) != 0) return {};
  return Hold(std::move(directory));
}

Result<Hold> make_held_directory(Storage& storage, std::string_view path) {
  TRY(storage.make_directory(path));
  Descriptor directory = open_directory(storage, path);
  if (!directory.is_open()) return Hold();
  const int error = lock(directory, LOCK_EX);
  struct stat status {};
  const bool is_gone = ::fstat(directory.get(), &status) == 0 && status.st_nlink == 0;
  if (error == EWOULDBLOCK || is_gone)
    return core::fail(Errc::aborted, "{} was removed by another process as soon as it was made", path);
  if (error != 0) return Hold();
  return Hold(std::move(directory));
}

Held is_held(Storage& storage, std::string_view path) {
  const Descriptor directory = open_directory(storage, path);
  if (!directory.is_open()) return Held::unknown;
  const int error = lock(directory, LOCK_EX);
  if (error == 0) return Held::no;
  return error == EWOULDBLOCK ? Held::yes : Held::unknown;
}

OwnerClaim& OwnerClaim::operator=(OwnerClaim&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}

OwnerClaim::~OwnerClaim() {
  release();
}

void OwnerClaim::release() {
  // The last of the job's ranks has it for itself.
  if (file_.is_open() && lock(file_, LOCK_EX) == 0) [[maybe_unused]]
    const int ignored = ::ftruncate(file_.get(), 0);
}

Result<OwnerClaim> OwnerClaim::take(const std::string& directory, const std::string& job, std::string& said) {
  const auto path = directory + "/" + kOwnerName;
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!file.is_open() && (errno == EACCES || errno == EROFS || errno == EPERM)) {
    // A job may only read there; a save says what it cannot do.
    said = fmt::format("cannot write {}: {}; two jobs that write there are not told", path,
                       std::generic_category().message(errno));
    return OwnerClaim();
  }
  if (!file.is_open())
    return core::fail(Errc::io, "cannot open {}: {}; a job writes there who has the directory", path,
                      std::generic_category().message(errno));
  std::string owner;
  // Another rank of this job may be writing the name, or another job just leaving.
  for (int i = 0; i < kTries; ++i) {
    const int error = lock(file, LOCK_EX);
    if (error == 0) {
      owner = read_text(file);
      if (!owner.empty() && !owner.starts_with(beginning_for(job)))
        said = fmt::format("{} belonged to {}, which is gone; it is taken over", directory, owner);
      TRY(write_text(file,
                     fmt::format("{}host {}, process {})\n", beginning_for(job), host_name(), ::getpid())));
      if (lock(file, LOCK_SH) == 0) return OwnerClaim(std::move(file));
    } else if (error != EWOULDBLOCK) {
      said =
          fmt::format("{}: the file system has no locks ({}), so that two jobs that write there are not told",
                      path, std::generic_category().message(error));
      return OwnerClaim();
    } else {
      owner = read_text(file);
      if (owner.starts_with(beginning_for(job)) && lock(file, LOCK_SH) == 0)
        return OwnerClaim(std::move(file));
      if (!owner.empty() && !owner.starts_with(beginning_for(job)) && i >= kTries / 10) break;
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
  return core::fail(
      Errc::already_exists,
      "{} is being written by {}; two jobs in one directory of checkpoints would remove each other's "
      "saves: give another directory, or end the other job first",
      directory, owner.empty() ? std::string("another job") : owner);
}

}  // namespace troupe::actors
