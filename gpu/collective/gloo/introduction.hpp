#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "posix/descriptor.hpp"

namespace troupe::gpu {

/// An address of this machine in the operating system's format.
struct SocketAddress {
  sockaddr_storage address{};
  socklen_t bytes = 0;
};

/// Connects all members of a group over TCP; called by all of them. Returns a connection to each, in group
/// order, and none at its own place.
///
/// A member listens on a port of `own`, and publishes the port through the rendezvous, together with a secret
/// made for this group. Each member connects to those before it in the group, sends the secret of the member
/// it connects to and receives its own: so both know who is there. Any other connection is rejected, whether
/// it sends something or stays silent. The port is closed when all are connected.
///
/// Errc::timeout names the members that gave no sign, Errc::peer_lost the one that is gone.
core::Result<std::vector<posix::Descriptor>> introduce(const GroupOptions& group, const SocketAddress& own,
                                                       Rendezvous& rendezvous);

}  // namespace troupe::gpu
