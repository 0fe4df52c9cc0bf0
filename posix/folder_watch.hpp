#pragma once

#include <chrono>
#include <string>

#include "core/result.hpp"
#include "posix/descriptor.hpp"

namespace troupe::posix {

/// Notices files that appear in a folder, or are replaced as a whole, from open() on. Move only.
class FolderWatch {
 public:
  /// Errc::io if the folder is not there, or the system gives out no further watch.
  static core::Result<FolderWatch> open(const std::string& folder);

  /// Waits until a file has appeared since the call before, or for as long as `patience`.
  void wait(std::chrono::milliseconds patience) const;

 private:
  explicit FolderWatch(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

  Descriptor descriptor_;
};

}  // namespace troupe::posix
