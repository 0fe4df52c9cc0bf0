#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/result.hpp"
#include "gpu/collective/blocking_group.hpp"
#include "gpu/collective/gloo/gloo_backend.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::gpu {

/// Errc::unavailable if the address or interface does not belong to this machine.
core::Result<std::shared_ptr<GlooDevice>> open_gloo_device(const GlooOptions& options);

/// Bytes to or from one other member. The slot distinguishes transfers between the same two members; it is
/// used once.
struct Transfer {
  int peer = 0;
  std::uint64_t slot = 0;
  std::byte* data = nullptr;  ///< only read when sending
  std::size_t bytes = 0;      ///< 0: no transfer at all
};

/// A transfer that was posted and goes on by itself. One thread at a time uses it.
class PostedTransfer {
 public:
  virtual ~PostedTransfer() = default;
  /// The member at the other side, when the transfer is complete. An error is the mesh's, as in
  /// Mesh::exchange().
  virtual core::Result<int> wait(const OperationDeadline& deadline) = 0;
};

/// Connections between all members of a group. Thread-safe.
class Mesh {
 public:
  static core::Result<std::unique_ptr<Mesh>> connect(std::shared_ptr<GlooDevice> device,
                                                     const GroupOptions& group, Rendezvous& rendezvous);
  virtual ~Mesh() = default;

  virtual const GroupOptions& group() const = 0;
  virtual int index() const = 0;

  /// Runs all transfers concurrently and returns when they are complete. After an error the mesh is no longer
  /// usable, here or on other members.
  virtual core::Result<void> exchange(std::span<const Transfer> receives, std::span<const Transfer> sends,
                                      const OperationDeadline& deadline) = 0;

  /// Transfers one by one, for messages with tags: of those with one slot and member, the first sent goes to
  /// the first posted. A receive from the peer kAnyMember takes the first that comes from anybody. Zero bytes
  /// are not a message. The memory stays alive until wait() has returned or the mesh is gone.
  static constexpr int kAnyMember = -1;
  virtual core::Result<std::unique_ptr<PostedTransfer>> post_send(const Transfer& transfer) = 0;
  virtual core::Result<std::unique_ptr<PostedTransfer>> post_receive(const Transfer& transfer) = 0;

  /// Running and later exchanges end in this error, or in the first one given; returns the one used.
  virtual core::Error fail(core::Error error) = 0;
  virtual std::optional<core::Error> failure() const = 0;
};

}  // namespace troupe::gpu
