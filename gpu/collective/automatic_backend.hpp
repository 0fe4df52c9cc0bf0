#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "gpu/collective/group.hpp"
#include "gpu/collective/shared_memory/shared_memory_backend.hpp"
#include "gpu/collective/tcp/tcp_backend.hpp"
#include "posix/authentication.hpp"

namespace troupe::gpu {

/// Collectives for host memory that suit each group: over shared memory if all its members are on one host,
/// otherwise over TCP. Members tell each other through the rendezvous where they are.
class AutomaticBackend final : public CollectiveBackend {
 public:
  /// `host` is equal for ranks that can share memory. `address` says where other hosts reach this one; it is
  /// asked when the first group over several hosts is made; `key` is TcpOptions::key. `rendezvous` must
  /// outlive the back-end.
  AutomaticBackend(Rendezvous& rendezvous, std::uint64_t host,
                   std::function<core::Result<std::string>()> address, std::optional<posix::JobToken> key);

  std::string_view name() const override { return "automatic"; }
  core::Result<std::unique_ptr<Group>> create_group(GroupOptions options) override;

 private:
  core::Result<bool> is_on_one_host(const GroupOptions& group);

  Rendezvous& rendezvous_;
  const std::string host_;
  const std::function<core::Result<std::string>()> address_;
  const std::optional<posix::JobToken> key_;
  SharedMemoryBackend shared_memory_;
  std::mutex mutex_;                 // guards what follows
  std::unique_ptr<TcpBackend> tcp_;  ///< once a group needs it
  std::map<core::Rank, std::string> hosts_;
};

}  // namespace troupe::gpu
