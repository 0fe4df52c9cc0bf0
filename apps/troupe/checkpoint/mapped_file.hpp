#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "actors/world/storage/posix.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// A file as memory that is read when it is touched, so that archives are parsed in place. The file must not
/// become shorter meanwhile.
class MappedFile {
 public:
  /// Errors are those of PosixStorage::open_file().
  static core::Result<MappedFile> open(const actors::PosixStorage& storage, const std::string& name);
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  /// The memory of this part of bytes() is given back; touching it reads the file again.
  void release(std::span<const std::byte> part) const;

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace troupe::apps
