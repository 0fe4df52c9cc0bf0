#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/world/storage.hpp"
#include "tests/cuda_emulation/control.hpp"

namespace troupe::actors {

/// Another storage, of which it is known how much memory tensors were read into, and how much more was pinned
/// meanwhile than when somebody first looked around. Thread safe.
class TrackedStorage final : public Storage {
 public:
  explicit TrackedStorage(Storage& storage) : storage_(storage) {}

  std::uint64_t bytes_read() const { return bytes_read_; }
  std::size_t pinned_bytes() const { return most_pinned_bytes_ - pinned_before_.value_or(0); }
  /// The size of all memory into which something was read, counting each byte once.
  std::size_t landing_bytes() const {
    std::size_t bytes = 0;
    const std::byte* covered = nullptr;
    for (const auto& [begin, end] : landings_) {
      const auto* first = std::max(begin, covered, std::less<>());
      if (std::less<>()(first, end)) bytes += static_cast<std::size_t>(end - first);
      covered = std::max(covered, end, std::less<>());
    }
    return bytes;
  }

  core::Result<std::size_t> read_into(std::string_view path, std::uint64_t offset,
                                      std::span<std::byte> bytes) override {
    auto count = storage_.read_into(path, offset, bytes);
    std::lock_guard lock(mutex_);
    bytes_read_ += bytes.size();
    most_pinned_bytes_ = std::max(most_pinned_bytes_, cuda_emulation::alive().pinned_bytes);
    // A file begins with its header, which is not a tensor.
    if (offset == 0) return count;
    auto& end = landings_.try_emplace(bytes.data(), bytes.data()).first->second;
    end = std::max<const std::byte*>(end, bytes.data() + bytes.size(), std::less<>());
    return count;
  }

  core::Result<std::unique_ptr<WritableFile>> create(std::string_view path) override {
    return storage_.create(path);
  }
  core::Result<std::vector<std::byte>> read(std::string_view path, std::uint64_t offset,
                                            std::size_t limit) override {
    return storage_.read(path, offset, limit);
  }
  core::Result<std::uint64_t> size(std::string_view path) override { return storage_.size(path); }
  core::Result<void> make_directory(std::string_view path) override { return storage_.make_directory(path); }
  core::Result<std::vector<std::string>> list(std::string_view path) override {
    std::lock_guard lock(mutex_);
    if (!pinned_before_) pinned_before_ = most_pinned_bytes_ = cuda_emulation::alive().pinned_bytes;
    return storage_.list(path);
  }
  core::Result<void> rename(std::string_view from, std::string_view to) override {
    return storage_.rename(from, to);
  }
  core::Result<void> remove(std::string_view path) override { return storage_.remove(path); }
  core::Result<void> sync_directory(std::string_view path) override { return storage_.sync_directory(path); }

 private:
  Storage& storage_;
  std::mutex mutex_;  // guards all below
  std::uint64_t bytes_read_ = 0;
  std::optional<std::size_t> pinned_before_;
  std::size_t most_pinned_bytes_ = 0;
  std::map<const std::byte*, const std::byte*, std::less<>> landings_;  ///< end, by begin
};

}  // namespace troupe::actors
