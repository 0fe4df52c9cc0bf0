#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/program/program.hpp"
#include "core/program/program_text.hpp"

namespace troupe::core {

/// Bytes of device memory that the program of a rank takes, all of it before the first step.
struct ProgramMemory {
  std::int64_t parameters = 0;  ///< as they rest, in the dtype the model reads
  /// As they rest between rounds, in `ordered` the stack of partial sums; and full ones of resident units
  /// where gradients are sharded.
  std::int64_t gradients = 0;
  std::int64_t main = 0;       ///< values the optimizer steps, where they are not the parameters themselves
  std::int64_t optimizer = 0;  ///< its other states
  std::int64_t parameter_pool = 0;
  std::int64_t gradient_pool = 0;
  std::int64_t incoming =
      0;  ///< of one exchange: what it brings, where that does not go to its place at once
  std::int64_t outgoing = 0;  ///< of one exchange: what does not lie as it is sent
  std::int64_t carry = 0;     ///< sums on their way from one axis to the next
  std::int64_t blocks = 0;    ///< of one gather in microscaling blocks: what it brings
  std::int64_t staging = 0;   ///< all of these, two of each but the last
  std::int64_t scratch = 0;   ///< between the kernels of one optimizer step
  std::int64_t checks = 0;    ///< square sums and the verdict

  /// What is sharded and never moves.
  std::int64_t at_rest() const { return parameters + gradients + main + optimizer; }
  std::int64_t pools() const { return parameter_pool + gradient_pool; }
  std::int64_t total() const { return at_rest() + pools() + staging + scratch + checks; }

  friend bool operator==(const ProgramMemory&, const ProgramMemory&) = default;
};

/// Gradients of a tensor of a domain that a rank needs room for at once, as they rest: one, or in `ordered`
/// numerics the depth of its stack of partial sums; of experts whose lanes are not dealt by round a stack for
/// each source.
int gradient_slots(const Program& program, std::size_t domain = 0);
/// Where each round reduces gradients: full ones of a tensor of the domain that a rank has in a round. One,
/// or in `ordered` numerics one for each source.
int full_gradient_slots(const Program& program, std::size_t domain);

ProgramMemory memory_of(const Program& program);

/// For people, in MiB and by kind.
std::string describe(const ProgramMemory& memory);

/// What one communicator carries in a step.
struct Traffic {
  Communicator communicator;
  std::int64_t launches = 0;
  std::int64_t bytes = 0;  ///< that the rank sends

  friend bool operator==(const Traffic&, const Traffic&) = default;
};

/// Bytes that the rank at `place` of its group must send for an entry, whatever the back-end: its part to all
/// others of an all_gather, all parts but its own of a reduce_scatter or an exchange, and both of these for
/// an all_reduce.
std::int64_t bytes_sent(const ProgramEntry& entry, std::int64_t place);

/// The place of the program's rank in the group of an entry.
std::int64_t place_in(const Program& program, const ProgramEntry& entry);

/// By communicator, in the order in which a step first launches on them.
std::vector<Traffic> traffic_of(const Program& program);

}  // namespace troupe::core
