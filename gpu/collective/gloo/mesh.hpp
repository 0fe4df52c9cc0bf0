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

/// Errc::unavailable when the address or interface is not this machine's.
core::Result<std::shared_ptr<GlooDevice>> open_gloo_device(const GlooOptions& options);

/// Bytes to or from one other member. The slot tells transfers between the same two members apart; it is
/// used once.
struct Transfer {
  int peer = 0;
  std::uint64_t slot = 0;
  std::byte* data = nullptr;  ///< only read when sent
  std::size_t bytes = 0;      ///< no transfer at all when 0
};

/// Connections between all members of a group. Thread safe.
class Mesh {
 public:
  static core::Result<std::unique_ptr<Mesh>> connect(std::shared_ptr<GlooDevice> device,
                                                     const GroupOptions& group, Rendezvous& rendezvous);
  virtual ~Mesh() = default;

  virtual const GroupOptions& group() const = 0;
  virtual int index() const = 0;

  /// Runs all transfers at the same time and returns when they are done. After an error the mesh is of no
  /// more use, here or elsewhere.
  virtual core::Result<void> exchange(std::span<const Transfer> receives, std::span<const Transfer> sends,
                                      const OperationDeadline& deadline) = 0;

  /// Running and later exchanges end in this error, or in the first one given; returns that one.
  virtual core::Error fail(core::Error error) = 0;
  virtual std::optional<core::Error> failure() const = 0;
};

}  // namespace troupe::gpu
