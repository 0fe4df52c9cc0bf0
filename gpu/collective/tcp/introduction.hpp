#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/collective/tcp/hub.hpp"
#include "posix/authentication.hpp"
#include "posix/descriptor.hpp"

namespace troupe::gpu {

/// A connection to another member.
struct Introduced {
  posix::Descriptor socket;
  std::string where;  ///< where the member is reached, for people
};

/// Connects all members of a group over TCP; called by all of them. Returns a connection to each, in group
/// order, and none at its own place.
///
/// A member listens on a port of `own`, and publishes the port through the rendezvous, together with a secret
/// made for this group. Each member connects to those before it in the group. Both then prove to each other,
/// by HMAC-SHA-256 over a number that the other has just drawn, that they know the job's key and what both
/// have published; neither is sent. So whoever reads along, or recorded an earlier introduction, cannot take
/// a member's place. Any other connection is rejected, whether it sends something or stays silent. The port
/// is closed when all are connected. What is sent on the connections afterwards is neither signed nor
/// encrypted.
///
/// Errc::timeout names the members that gave no sign, Errc::peer_lost the one that is gone, Errc::mismatch
/// one that has a key where this one has none.
core::Result<std::vector<Introduced>> introduce(const GroupOptions& group, const SocketAddress& own,
                                                const std::optional<posix::JobToken>& key,
                                                Rendezvous& rendezvous);

}  // namespace troupe::gpu
