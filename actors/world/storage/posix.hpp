#pragma once

#include <memory>
#include <string>

#include "actors/world/storage.hpp"

namespace troupe::actors {

/// A directory of the file system.
class PosixStorage final : public Storage {
 public:
  /// The directory must be there; what it is called later does not matter.
  static core::Result<std::unique_ptr<PosixStorage>> open(const std::string& directory);
  /// As open(), after making the directory and those above it when they are not there.
  static core::Result<std::unique_ptr<PosixStorage>> open_or_make(const std::string& directory);
  ~PosixStorage() override;
  PosixStorage(const PosixStorage&) = delete;
  PosixStorage& operator=(const PosixStorage&) = delete;

  core::Result<std::unique_ptr<WritableFile>> create(std::string_view path) override;
  core::Result<std::vector<std::byte>> read(std::string_view path, std::uint64_t offset,
                                            std::size_t limit) override;
  core::Result<std::size_t> read_into(std::string_view path, std::uint64_t offset,
                                      std::span<std::byte> bytes) override;
  core::Result<std::uint64_t> size(std::string_view path) override;
  core::Result<void> make_directory(std::string_view path) override;
  core::Result<std::vector<std::string>> list(std::string_view path) override;
  core::Result<void> rename(std::string_view from, std::string_view to) override;
  core::Result<void> remove(std::string_view path) override;
  core::Result<void> sync_directory(std::string_view path) override;

 private:
  PosixStorage(std::string directory, int descriptor)
      : directory_(std::move(directory)), descriptor_(descriptor) {}

  core::Error failure(std::string_view what, std::string_view path, int error) const;
  core::Result<std::size_t> read_from(int file, std::string_view path, std::uint64_t offset,
                                      std::span<std::byte> bytes) const;
  core::Result<int> open_at(std::string_view path, int flags) const;

  std::string directory_;  ///< for messages
  int descriptor_;
};

}  // namespace troupe::actors
