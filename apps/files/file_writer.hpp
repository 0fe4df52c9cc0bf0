#pragma once

#include <array>
#include <cstddef>
#include <future>
#include <memory>
#include <span>

#include "actors/world/storage.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// Appends to a file in large pieces whose memory is aligned as their place in the file is: storage may then
/// hand them to the disk as they are. One piece is written while the next one is filled, so an error comes
/// with a later call, with finish() at the latest.
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
  using Buffer = std::unique_ptr<std::byte, Free>;

  core::Result<void> flush();
  core::Result<void> wait();

  std::unique_ptr<actors::WritableFile> file_;
  std::array<Buffer, 2> buffers_;
  std::size_t filling_ = 0;  ///< which of them
  std::size_t filled_ = 0;   ///< bytes
  /// The write of the other buffer. Declared last: what it uses outlives it, because its end is waited for.
  std::future<core::Result<void>> writing_;
};

}  // namespace troupe::apps
