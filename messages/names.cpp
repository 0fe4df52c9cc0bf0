#include <fmt/format.h>

#include <iterator>

#include "messages/envelope.hpp"
#include "messages/wire/kinds.hpp"

namespace troupe::messages {

std::string_view name_of(Role role) noexcept {
  switch (role) {
    case Role::trainer:
      return "trainer";
    case Role::rank_supervisor:
      return "rank_supervisor";
    case Role::conductor:
      return "conductor";
    case Role::gradient_bucket:
      return "gradient_bucket";
    case Role::parameter_shard:
      return "parameter_shard";
    case Role::coordinator:
      return "coordinator";
    case Role::checkpoint_writer:
      return "checkpoint_writer";
    case Role::checkpoint_coordinator:
      return "checkpoint_coordinator";
    case Role::local_writer:
      return "local_writer";
    case Role::replica_keeper:
      return "replica_keeper";
    case Role::replica_coordinator:
      return "replica_coordinator";
    case Role::expert_group:
      return "expert_group";
  }
  return "unknown";
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
