#pragma once

#include <compare>
#include <cstddef>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::gpu {

/// An operation to come.
struct ExpectedOperation {
  OperationKind kind = OperationKind::barrier;
  core::DType dtype = core::DType::f32;
  /// Elements: of each member's part in a reduce_scatter or an all_gather; otherwise one number, in an
  /// all_to_all of what goes from one member to another.
  std::vector<std::size_t> parts;
  int peer = 0;  ///< of messages, as in Operation

  friend auto operator<=>(const ExpectedOperation&, const ExpectedOperation&) = default;
};

/// Implemented by back-ends that connect members when an operation first needs it: they may connect for what
/// is expected while the group is made.
class ConnectsAhead {
 public:
  virtual ~ConnectsAhead() = default;
  /// What the next group of this name will post, as far as it is known; all its members list the same
  /// collectives in the same order.
  virtual void expect(const std::string& group, std::vector<ExpectedOperation> operations) = 0;
};

}  // namespace troupe::gpu
