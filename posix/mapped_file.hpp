#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "core/result.hpp"
#include "posix/descriptor.hpp"

namespace troupe::posix {

/// A file as memory that is read when it is touched. Where the file has become shorter meanwhile, or its disk
/// fails, a touch of what is gone ends the process by end_program(), which names the file.
class MappedFile {
 public:
  /// `name` is what messages call it. The descriptor may be closed afterwards. Errc::io.
  static core::Result<MappedFile> open(const Descriptor& file, std::string name);
  MappedFile(MappedFile&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), guard_(std::exchange(other.guard_, nullptr)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(guard_, other.guard_);
    return *this;
  }
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  /// The memory of this part of bytes() is given back; touching it reads the file again.
  void release(std::span<const std::byte> part) const;

  struct Guard;

 private:
  MappedFile(std::span<const std::byte> bytes, Guard* guard) : bytes_(bytes), guard_(guard) {}

  std::span<const std::byte> bytes_;
  Guard* guard_;  ///< one of the process's; null for an empty file
};

}  // namespace troupe::posix
