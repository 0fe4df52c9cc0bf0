#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/program/program.hpp"
#include "core/program/program_text.hpp"

namespace troupe::core {

/// Bytes of device memory of a rank's program, all of it allocated before the first step.
struct ProgramMemory {
  std::int64_t parameters = 0;  ///< as kept between uses, in the dtype the model reads
  /// What is kept between rounds, in `ordered` the stack of partial sums; also the full ones of resident
  /// units where gradients are sharded.
  std::int64_t gradients = 0;
  std::int64_t main = 0;       ///< values that the optimizer steps, if not the parameters themselves
  std::int64_t optimizer = 0;  ///< its other states
  std::int64_t parameter_pool = 0;
  std::int64_t gradient_pool = 0;
  std::int64_t incoming =
      0;  ///< for one exchange: the data it receives, unless that goes directly to its place
  std::int64_t outgoing = 0;  ///< for one exchange: data that is not already laid out as it is sent
  std::int64_t carry = 0;     ///< sums in transit from one axis to the next
  std::int64_t blocks = 0;    ///< for one gather in microscaling blocks: received data
  std::int64_t staging = 0;   ///< all of these, two of each except the last
  std::int64_t scratch = 0;   ///< between the kernels of one optimizer step
  std::int64_t checks = 0;    ///< square sums and the verdict

  /// What is sharded and never moves.
  std::int64_t at_rest() const { return parameters + gradients + main + optimizer; }
  std::int64_t pools() const { return parameter_pool + gradient_pool; }
  std::int64_t total() const { return at_rest() + pools() + staging + scratch + checks; }

  friend bool operator==(const ProgramMemory&, const ProgramMemory&) = default;
};

/// Number of gradients of a tensor in a domain that a rank must hold at the same time, between rounds: one,
/// or in `ordered` numerics the depth of its stack of partial sums; for experts whose lanes are not dealt by
/// round, one stack per source.
int gradient_slots(const Program& program, std::size_t domain = 0);
/// Where each round reduces gradients: number of full gradients of a tensor in the domain that a rank has in
/// a round. One, or in `ordered` numerics one per source.
int full_gradient_slots(const Program& program, std::size_t domain);

ProgramMemory memory_of(const Program& program);

/// Human-readable, in MiB and by kind.
std::string describe(const ProgramMemory& memory);

/// The traffic of one communicator in a step.
struct Traffic {
  Communicator communicator;
  std::int64_t launches = 0;
  std::int64_t bytes = 0;  ///< sent by the rank

  friend bool operator==(const Traffic&, const Traffic&) = default;
};

/// Bytes that the rank at `place` of its group must send for an entry, whatever the back-end: its part to all
/// others for an all_gather, all parts except its own for a reduce_scatter or an exchange, and both for an
/// all_reduce.
std::int64_t bytes_sent(const ProgramEntry& entry, std::int64_t place);

/// The place of the program's rank in the group of an entry.
std::int64_t place_in(const Program& program, const ProgramEntry& entry);

/// Per communicator, in the order in which a step first launches on them.
std::vector<Traffic> traffic_of(const Program& program);

}  // namespace troupe::core
