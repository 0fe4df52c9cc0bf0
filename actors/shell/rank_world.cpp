#include "actors/shell/rank_world.hpp"

#include "core/errors.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

core::Result<void> check_sent(const messages::Envelope& envelope, core::Result<void> sent) {
  if (sent || sent.error().code == core::Errc::peer_lost || sent.error().code == core::Errc::aborted)
    return {};
  return core::fail(sent.error().code, "{} could not be sent from {} to {}: {}", name_of(envelope.body),
                    to_string(envelope.from), to_string(envelope.to), sent.error().message);
}

}  // namespace troupe::actors
