#pragma once

#include <memory>
#include <string_view>

#include "gpu/collective/group.hpp"
#include "gpu/collective/shared_memory/arena.hpp"

namespace troupe::gpu {

/// Collectives between the ranks of one host, which may be processes or threads of one process, over memory
/// mapped by all. The ranks share /dev/shm, the user and the PID namespace. A peer's death is detected within
/// milliseconds, even if it is killed at an arbitrary instant. Reductions are as exact as reduce_in_order(),
/// so a result does not depend on sizes, chunks or timing. An abort ends the operations of all members. Only
/// its user can access the memory, under a random name that members learn through the rendezvous.
class SharedMemoryBackend final : public CollectiveBackend {
 public:
  /// `rendezvous` must outlive the back-end.
  explicit SharedMemoryBackend(Rendezvous& rendezvous, SharedMemoryOptions options = {})
      : rendezvous_(rendezvous), options_(options) {}

  std::string_view name() const override { return "shared_memory"; }
  core::Result<std::unique_ptr<Group>> create_group(GroupOptions options) override;

 private:
  Rendezvous& rendezvous_;
  SharedMemoryOptions options_;
};

}  // namespace troupe::gpu
