#include "gpu/collective/automatic_backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/errors.hpp"

namespace troupe::gpu {

using Clock = std::chrono::steady_clock;

AutomaticBackend::AutomaticBackend(Rendezvous& rendezvous, std::uint64_t host,
                                   std::function<core::Result<std::string>()> address)
    : rendezvous_(rendezvous),
      host_(fmt::format("{:016x}", host)),
      address_(std::move(address)),
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
  GlooBackend* gloo = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (!TRY(is_on_one_host(options))) {
      if (!gloo_) {
        GlooOptions chosen;
        chosen.host = TRY(address_());
        gloo_ = TRY(GlooBackend::open(rendezvous_, chosen));
      }
      gloo = gloo_.get();
    }
  }
  if (gloo != nullptr) return gloo->create_group(std::move(options));
  return shared_memory_.create_group(std::move(options));
}

}  // namespace troupe::gpu
