#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "actors/session/device_copies.hpp"
#include "core/ids.hpp"
#include "core/list.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// Narrow parameters whose first values were given in f32: their fp32 masters begin with these, not with what
/// the parameters' dtype leaves of them. Those that are gathered in blocks begin with values of their dtype.
class ExactMasters {
 public:
  /// The context must outlive it.
  explicit ExactMasters(const SessionContext& context);

  bool has(core::ParameterIndex index) const { return written_[index]; }
  bool empty() const;
  /// `values` are those of the parameter's elements from `first` on. No effect where no master is kept here.
  core::Result<void> write(core::ParameterIndex index, std::int64_t first, std::span<const float> values);
  /// Before the first step. An element that the trainer has changed in the parameter's memory since counts as
  /// it is there.
  core::Result<void> adopt(core::ParameterIndex index);

 private:
  /// What this rank's optimizer steps of a parameter.
  struct Part {
    std::int64_t first = 0;  ///< element of the parameter
    gpu::BufferView master;
    gpu::BufferView values;  ///< of the parameter's dtype
  };
  Part part_of(core::ParameterIndex index) const;

  const SessionContext& in_;
  DeviceCopies copies_;
  core::List<core::ParameterIndex, bool> written_;  ///< by parameter
};

}  // namespace troupe::actors
