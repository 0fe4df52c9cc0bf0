#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "actors/world/storage.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// Appends to a file in large pieces whose memory is aligned as their place in the file is: storage may then
/// hand them to the disk as they are.
class FileWriter {
 public:
  explicit FileWriter(std::unique_ptr<actors::WritableFile> file);

  core::Result<void> append(std::span<const std::byte> bytes);
  /// Everything is durable and the file closed when this succeeds.
  core::Result<void> finish();

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };

  core::Result<void> flush();

  std::unique_ptr<actors::WritableFile> file_;
  std::unique_ptr<std::byte, Free> buffer_;
  std::size_t filled_ = 0;
};

}  // namespace troupe::apps
