#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "actors/world/storage.hpp"
#include "core/result.hpp"
#include "posix/descriptor.hpp"

namespace troupe::actors {

/// While it lives, other processes see that a directory is being written: it ends with the process, however
/// that ends. Empty where the file system knows no such locks, and for a storage that is not a directory of
/// this machine.
class Hold {
 public:
  Hold() = default;
  explicit Hold(posix::Descriptor locked) : locked_(std::move(locked)) {}

  bool is_empty() const { return !locked_.is_open(); }

 private:
  posix::Descriptor locked_;
};

/// Empty also when another process has it.
Hold hold_directory(Storage& storage, std::string_view path);
/// Makes a directory and holds it. Errc::aborted in the rare case that a process that removes what others
/// left took it for that: try another name.
core::Result<Hold> make_held_directory(Storage& storage, std::string_view path);

enum class Held : std::uint8_t {
  no,
  yes,      ///< by a process that lives, this one included
  unknown,  ///< the file system cannot say
};
Held is_held(Storage& storage, std::string_view path);

/// A directory of checkpoints belongs to one job, whose ranks all have a claim, so that it lasts as long as
/// any of them. The file kOwnerName in it names the job.
class OwnerClaim {
 public:
  OwnerClaim() = default;
  OwnerClaim(OwnerClaim&& other) noexcept = default;
  OwnerClaim& operator=(OwnerClaim&&) noexcept;
  /// Leaves the file empty, so that nobody takes this job for one that was killed.
  ~OwnerClaim();

  /// Errc::already_exists names another job that has it, with its host and process. A job that is gone
  /// without having said so is taken over; `said` then names it, and also says when the file system has no
  /// locks.
  static core::Result<OwnerClaim> take(const std::string& directory, const std::string& job,
                                       std::string& said);

 private:
  explicit OwnerClaim(posix::Descriptor file) : file_(std::move(file)) {}
  void release();

  posix::Descriptor file_;
};

inline constexpr const char* kOwnerName = ".troupe-owner";

}  // namespace troupe::actors
