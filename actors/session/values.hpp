#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "actors/session/device_copies.hpp"
#include "core/ids.hpp"
#include "core/list.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// The parameters' values and the optimizer's states, where the trainer writes and reads them itself: between
/// steps, and the part that this rank keeps.
///
/// Narrow parameters whose first values were given in f32 have fp32 masters that begin with these, not with
/// what the parameters' dtype leaves of them. Those that are gathered in blocks begin with values of their
/// dtype.
class Values {
 public:
  /// Is given the first element's place in the parameter, and the elements.
  using Visit = std::function<void(std::int64_t, std::span<float>)>;

  /// The context must outlive it.
  explicit Values(const SessionContext& context);

  /// The optimizer has the values, by adopt() or because they came with its state.
  bool are_adopted() const { return adopted_; }
  void came_with_state() { adopted_ = true; }
  /// Gives them to the optimizer, unless it has them. An element that the trainer has changed in the
  /// parameter's memory since write() counts as it is there.
  core::Result<void> adopt();
  /// What follows a restore or an evaluation is written to the optimizer's copy as well.
  core::Result<void> write(core::ParameterIndex index, const Visit& fill);

  /// The part of an optimizer's state that this rank steps; Errc::invalid_argument: there is no such state.
  core::Result<RankTensors::Part> state(core::ParameterIndex index, std::string_view name) const;
  /// Calls `visit` with that part, if it is not empty.
  core::Result<void> visit(const RankTensors::Part& state, bool writes, const Visit& visit);

 private:
  core::Result<void> adopt(core::ParameterIndex index);
  core::Result<void> adopt_master(core::ParameterIndex index);
  /// Rounds what is gathered in blocks; what was enqueued for parameters' values is done when it returns.
  core::Result<void> settle();
  core::Result<void> write_memory(core::ParameterIndex index, const Visit& fill);
  /// `values` are those of the parameter's elements from `first` on. No effect where no master is kept here.
  core::Result<void> write_master(core::ParameterIndex index, std::int64_t first,
                                  std::span<const float> values);
  RankTensors::Part part_of(StateKind kind, core::ParameterIndex index) const {
    return in_.data.tensors().state(kind, index);
  }
  std::chrono::nanoseconds deadline() const { return 3 * in_.options.step_deadline; }

  const SessionContext& in_;
  DeviceCopies copies_;
  bool adopted_ = false;
  core::List<core::ParameterIndex, bool> has_exact_master_;
};

}  // namespace troupe::actors
