#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "posix/descriptor.hpp"

namespace troupe::apps {

/// A TCP connection over the loopback interface between every two processes, and nothing on it but bytes: the
/// limit of what goes over TCP there.
class PlainLoopback {
 public:
  /// Called by all `ranks`; returns when all are connected.
  static core::Result<std::unique_ptr<PlainLoopback>> connect(gpu::Rendezvous& rendezvous, int index,
                                                              int ranks);

  /// Sends this many bytes to each other rank and receives as many from each, all at once.
  core::Result<void> exchange(const std::vector<std::size_t>& to, const std::vector<std::size_t>& from);

 private:
  PlainLoopback() = default;

  std::vector<posix::Descriptor> connections_;  ///< none to itself
  std::vector<std::byte> sent_;
  std::vector<std::byte> received_;
};

}  // namespace troupe::apps
