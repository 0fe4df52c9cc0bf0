#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "actors/world/agent_store.hpp"
#include "actors/world/endpoint.hpp"
#include "actors/world/environment.hpp"
#include "actors/world/log.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// How ranks that torchrun started find rank 0, which cannot listen at MASTER_PORT: it listens elsewhere and
/// says where in the store of torchrun's agent. Ranks of one host also meet by a file in /dev/shm, so that a
/// store that says nothing does not matter to them. Neither place carries secrets. Calls block.
class MeetingPoint {
 public:
  /// `log` is told when the store cannot be used and need not be. The agent is at the environment's control
  /// address.
  MeetingPoint(const JobEnvironment& environment, std::string agent_key, Logger log);
  /// Removes what is left of announce().
  ~MeetingPoint();
  MeetingPoint(const MeetingPoint&) = delete;
  MeetingPoint& operator=(const MeetingPoint&) = delete;

  /// At rank 0: the host at which to listen. Errc::mismatch if who listens at MASTER_PORT is no store.
  core::Result<std::string> host_to_listen_at();
  /// At rank 0, after that: it listens at this port there.
  core::Result<void> announce(std::uint16_t port);
  /// At rank 0: all ranks have come.
  void close();

  /// Elsewhere: where rank 0 listens. Errc::timeout if it has not said so within `patience`.
  core::Result<Endpoint> find(std::chrono::nanoseconds patience);

 private:
  using Time = AgentStore::Time;
  core::Result<AgentStore*> store(Time deadline);
  bool is_one_host() const { return environment_.local_world == environment_.world.value; }

  const JobEnvironment environment_;
  const std::string agent_key_;
  const Logger log_;
  const std::string file_;
  std::string announced_host_;
  bool file_is_written_ = false;
  bool store_is_useless_ = false;  ///< on one host
  std::optional<AgentStore> store_;
};

}  // namespace troupe::actors
