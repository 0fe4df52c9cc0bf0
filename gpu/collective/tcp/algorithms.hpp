#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/result.hpp"
#include "gpu/collective/tcp/mesh.hpp"

namespace troupe::gpu {

/// Runs prepared operations to completion in the calling thread: collectives one at a time, and so the
/// messages of each direction between two members.
class MeshAlgorithms {
 public:
  explicit MeshAlgorithms(Mesh& mesh) : mesh_(mesh) {}

  /// `sequence` numbers the collectives of the group, or the messages of the direction.
  core::Result<void> run(const Operation& operation, std::uint64_t sequence,
                         const OperationDeadline& deadline);

 private:
  Mesh& mesh_;
  // Data received from other members; the memory is reused by the next collective.
  std::vector<std::byte> received_;
};

}  // namespace troupe::gpu
