#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <memory>
#include <string_view>

#include "actors/world/log.hpp"
#include "apps/troupe/launch/console.hpp"
#include "apps/troupe/launch/rank_log.hpp"
#include "core/result.hpp"
#include "posix/descriptor.hpp"

namespace troupe::apps {

/// Our stdout and stderr, written by the event loop when they take more. If both are the same pipe or
/// terminal they share one outlet, so that a line of one never cuts a line of the other.
class Terminal final : public Console {
 public:
  explicit Terminal(asio::io_context& loop);

  void line(actors::OutputStream stream, std::string_view prefix, std::string_view text) override;
  /// How say() says it, and in which file besides; without it, as text. Errc::io if there cannot be the file.
  core::Result<void> log_by(actors::LogOptions options);
  /// A sentence of the launcher itself, to stderr.
  void say(std::string_view text);
  /// At the end: a reader that takes nothing for ten seconds loses the rest.
  void drain();

 private:
  struct Side {
    Side(asio::io_context& loop, int fd);
    void write_when_ready();

    posix::Descriptor terminal;  ///< where the outlet writes, if that is a terminal
    Outlet outlet;
    /// Readable when the outlet takes more; not open for files, which never make us wait. It is an epoll of
    /// our own, because Asio makes what it waits for non-blocking, also for all who share it with us.
    asio::posix::stream_descriptor ready;
    bool waiting = false;
  };

  std::shared_ptr<Side> out_;  // shared by the two streams when they are one
  std::shared_ptr<Side> err_;
  std::unique_ptr<actors::Log> log_;  ///< may be null
};

}  // namespace troupe::apps
