#include <fmt/format.h>

#include <iterator>

#include "core/enum_names.hpp"
#include "messages/envelope.hpp"
#include "messages/wire/kinds.hpp"

namespace troupe::messages {

std::string_view name_of(Role role) noexcept {
  static constexpr auto kNames =
      core::enum_names<Role>("trainer", "rank_supervisor", "conductor", "gradient_bucket", "parameter_shard",
                             "coordinator", "checkpoint_writer", "checkpoint_coordinator", "local_writer",
                             "replica_keeper", "replica_coordinator", "expert_group");
  return kNames[role];
}

std::string to_string(const Address& address) {
  bool numbered = address.role == Role::gradient_bucket || address.role == Role::parameter_shard ||
                  address.role == Role::expert_group;
  return numbered ? fmt::format("{} {} @ rank {}", name_of(address.role), address.index, address.rank.value)
                  : fmt::format("{} @ rank {}", name_of(address.role), address.rank.value);
}

std::string_view name_of(const Message& message) noexcept {
  constexpr std::size_t kTravelling = std::size(wire::kWireKinds);
  const std::size_t place = message.index();
  return place < kTravelling ? wire::kWireKinds[place].name : wire::kCompletionNames[place - kTravelling];
}

}  // namespace troupe::messages
