#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/ids.hpp"

namespace troupe::messages {

/// The roles in a rank, in a node and in a job. The numbers are on the wire: only append.
enum class Role : std::uint8_t {
  trainer = 0,                 ///< the user's own loop; one per rank
  rank_supervisor = 1,         ///< one per rank
  conductor = 2,               ///< one per device
  gradient_bucket = 3,         ///< one per bucket, `index` = bucket
  parameter_shard = 4,         ///< one per bucket, `index` = bucket
  coordinator = 5,             ///< one per job, in rank 0's process
  checkpoint_writer = 6,       ///< one per rank
  checkpoint_coordinator = 7,  ///< one per job, in rank 0's process
  local_writer = 8,            ///< one per rank: a CheckpointWriter that writes the rank's own copy
  replica_keeper = 9,          ///< one per rank
  replica_coordinator = 10,    ///< one per job, in rank 0's process
  expert_group = 11,           ///< one per layer of experts, `index` = layer
};

std::string_view name_of(Role role) noexcept;

/// The sender, or the intended receiver.
struct Address {
  core::Rank rank{};
  Role role = Role::trainer;
  std::uint32_t index = 0;

  friend auto operator<=>(const Address&, const Address&) = default;
};

/// "gradient_bucket 3 @ rank 1", as in dumps and logs.
std::string to_string(const Address& address);

}  // namespace troupe::messages
