#pragma once

#include <string>

#include "core/result.hpp"
#include "posix/descriptor.hpp"

namespace troupe::apps {

/// A port of this host that the system gives to nobody else, as long as this exists. A rank can listen there:
/// like every server it sets SO_REUSEADDR, and nobody listens here.
class ReservedPort {
 public:
  /// A free one. Errc::io if there is none.
  static core::Result<ReservedPort> any();
  /// This one. Errc::already_exists if somebody listens there, Errc::invalid_argument for an address that is
  /// not this machine's; the messages name `flag`, which chose the address.
  static core::Result<ReservedPort> of(const std::string& address, int port, const std::string& flag);

  int number() const { return number_; }

 private:
  ReservedPort(posix::Descriptor socket, int number) : socket_(std::move(socket)), number_(number) {}

  posix::Descriptor socket_;
  int number_ = 0;
};

/// Whether ranks can listen at this address; Errc::invalid_argument as for ReservedPort::of().
core::Result<void> check_own_address(const std::string& address, const std::string& flag);

}  // namespace troupe::apps
