#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "actors/world/storage.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

/// Another storage as one rank sees it: counts what is read of tensors' files, and may refuse to read some.
class WatchedStorage final : public Storage {
 public:
  explicit WatchedStorage(Storage& storage) : storage_(storage) {}

  std::function<bool(std::string_view path)> refuses;
  std::uint64_t bytes_read() const { return bytes_read_; }

  core::Result<std::unique_ptr<WritableFile>> create(std::string_view path) override {
    return storage_.create(path);
  }
  core::Result<std::vector<std::byte>> read(std::string_view path, std::uint64_t offset,
                                            std::size_t limit) override {
    if (refuses && refuses(path))
      return core::fail(core::Errc::io, "{}: Input/output error", std::string(path));
    auto bytes = storage_.read(path, offset, limit);
    if (bytes && path.ends_with(".safetensors")) bytes_read_ += bytes->size();
    return bytes;
  }
  core::Result<std::uint64_t> size(std::string_view path) override { return storage_.size(path); }
  core::Result<void> make_directory(std::string_view path) override { return storage_.make_directory(path); }
  core::Result<std::vector<std::string>> list(std::string_view path) override { return storage_.list(path); }
  core::Result<void> rename(std::string_view from, std::string_view to) override {
    return storage_.rename(from, to);
  }
  core::Result<void> remove(std::string_view path) override { return storage_.remove(path); }
  core::Result<void> sync_directory(std::string_view path) override { return storage_.sync_directory(path); }

 private:
  Storage& storage_;
  std::uint64_t bytes_read_ = 0;
};

}  // namespace troupe::actors
