#include "actors/session/host_exchange.hpp"

#include <utility>

#include "core/errors.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

HostExchange::~HostExchange() {
  abort({core::Errc::aborted, "the session ended"});
  stream_.reset();
}

core::Result<void> HostExchange::open() {
  if (stream_) return {};
  auto group = TRY(make_group_());
  stream_ = TRY(world_.host_device().create_stream({"loads", 0}));
  std::lock_guard lock(mutex_);
  group_ = std::move(group);
  if (aborted_) group_->abort(*aborted_);
  return {};
}

void HostExchange::exchange(LoadedBytes bytes) {
  CHECK(stream_ != nullptr, "an exchange is opened before");
  auto posted = group_->post(bytes.operation(deadline_), stream_.get());
  if (!posted) return say(tl::unexpected(posted.error()));
  stream_->notify([this, status = std::move(*posted), owner = std::move(bytes.owner)] {
    say(status->result().value_or(core::Result<void>{}));
  });
}

void HostExchange::say(core::Result<void> result) {
  const messages::Address trainer{world_.rank(), messages::Role::trainer, 0};
  world_.post({trainer, trainer, world_.epoch(), messages::LoadedShared{messages::failure_of(result)}});
}

void HostExchange::abort(const core::Error& reason) {
  std::lock_guard lock(mutex_);
  if (!aborted_) aborted_ = reason;
  if (group_) group_->abort(reason);
}

}  // namespace troupe::actors
