#include "gpu/collective/automatic_backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/errors.hpp"

namespace troupe::gpu {

using Clock = std::chrono::steady_clock;

AutomaticBackend::AutomaticBackend(Rendezvous& rendezvous, std::uint64_t host,
                                   std::function<core::Result<std::string>()> address,
                                   std::optional<posix::JobToken> key)
    : rendezvous_(rendezvous),
      host_(fmt::format("{:016x}", host)),
      address_(std::move(address)),
      key_(key),
      shared_memory_(rendezvous) {}

core::Result<bool> AutomaticBackend::is_on_one_host(const GroupOptions& group) {
  if (group.members.size() < 2) return true;
  const auto give_up = Clock::now() + group.deadline;
  const auto key_of = [&](core::Rank rank) {
    return fmt::format("{}/{}/host/{}", group.job, group.epoch.value, rank.value);
  };
  if (hosts_.try_emplace(group.self, host_).second) TRY(rendezvous_.set(key_of(group.self), host_));
  for (const core::Rank rank : group.members) {
    if (hosts_.contains(rank)) continue;
    const auto left = std::max<std::chrono::nanoseconds>(give_up - Clock::now(), {});
    hosts_[rank] = TRY(rendezvous_.get(key_of(rank), left));
  }
  return std::ranges::all_of(group.members, [&](core::Rank rank) { return hosts_[rank] == host_; });
}

core::Result<std::unique_ptr<Group>> AutomaticBackend::create_group(GroupOptions options) {
  TcpBackend* tcp = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (!TRY(is_on_one_host(options))) {
      if (!tcp_) {
        TcpOptions chosen;
        chosen.host = TRY(address_());
        chosen.key = key_;
        tcp_ = TRY(TcpBackend::open(rendezvous_, chosen));
      }
      tcp = tcp_.get();
    }
  }
  if (tcp != nullptr) return tcp->create_group(std::move(options));
  return shared_memory_.create_group(std::move(options));
}

}  // namespace troupe::gpu
