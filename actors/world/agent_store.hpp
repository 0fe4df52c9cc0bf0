#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "actors/world/endpoint.hpp"
#include "core/result.hpp"
#include "posix/descriptor.hpp"

namespace troupe::actors {

/// A client of the key-value store that torchrun's agent keeps at MASTER_ADDR and MASTER_PORT (a TCPStore of
/// PyTorch). Anybody who reaches it can read and write it, so it is not for secrets. Calls block the caller,
/// until the deadline at the latest; Errc::timeout and Errc::peer_lost name the store's address, and
/// Errc::mismatch says that who answers there is no such store.
class AgentStore {
 public:
  using Time = std::chrono::steady_clock::time_point;

  static core::Result<AgentStore> connect(const std::string& host, std::uint16_t port, Time deadline);

  core::Result<void> set(const std::string& key, const std::string& value, Time deadline);
  /// The value; nothing while nobody has set it.
  core::Result<std::optional<std::string>> find_key(const std::string& key, Time deadline);

  /// This host's address on the way to the store, and the store's.
  const std::string& own_address() const { return own_address_; }
  const std::string& address() const { return address_; }

 private:
  AgentStore(posix::Descriptor socket, Endpoint where)
      : socket_(std::move(socket)), where_(std::move(where)) {}
  core::Result<void> introduce(Time deadline);
  core::Result<void> write(const std::string& bytes, Time deadline);
  core::Result<std::string> read(std::size_t bytes, Time deadline);

  posix::Descriptor socket_;
  Endpoint where_;
  std::string own_address_;
  std::string address_;
};

}  // namespace troupe::actors
