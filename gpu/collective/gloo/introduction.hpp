#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "posix/descriptor.hpp"

namespace troupe::gpu {

/// An address of this machine, as the operating system writes it.
struct SocketAddress {
  sockaddr_storage address{};
  socklen_t bytes = 0;
};

/// Connects all members of a group over TCP; called by all of them. Returns a connection to each, in group
/// order, and none at the own place.
///
/// A member listens on a port of `own`, and tells the others through the rendezvous where, together with a
/// secret made for this group. Each member calls those before it in the group, gives the secret of whom it
/// calls and hears its own: so both know who is there. Anybody else that connects is turned away, whatever
/// it says or keeps to itself. The port is closed when all are there.
///
/// Errc::timeout names the members of whom there was no sign, Errc::peer_lost the one that is gone.
core::Result<std::vector<posix::Descriptor>> introduce(const GroupOptions& group, const SocketAddress& own,
                                                       Rendezvous& rendezvous);

}  // namespace troupe::gpu
