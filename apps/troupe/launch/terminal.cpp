#include "apps/troupe/launch/terminal.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <system_error>
#include <utility>

#include "core/errors.hpp"

namespace troupe::apps {

using actors::OutputStream;

namespace {

bool same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

/// A terminal that says it is ready may still make us wait for room, so we write through a description of our
/// own that never waits. None for anything else, and where the terminal is another user's.
posix::Descriptor reopen_terminal(int fd) {
  if (::isatty(fd) == 0) return {};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return posix::Descriptor(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

Terminal::Side::Side(asio::io_context& loop, int fd)
    : terminal(reopen_terminal(fd)), outlet(terminal.is_open() ? terminal.get() : fd), ready(loop) {
  posix::Descriptor poller(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event takes_more{};
  takes_more.events = EPOLLOUT;
  if (::epoll_ctl(poller.get(), EPOLL_CTL_ADD, outlet.fd(), &takes_more) != 0) return;
  std::error_code error;
  ready.assign(poller.get(), error);
  if (!error) poller.release();
}

void Terminal::Side::write_when_ready() {
  if (waiting || outlet.is_empty() || !ready.is_open()) return;
  waiting = true;
  ready.async_wait(asio::posix::stream_descriptor::wait_read, [this](const std::error_code& error) {
    waiting = false;
    if (error) return;
    outlet.flush();
    write_when_ready();
  });
}

Terminal::Terminal(asio::io_context& loop)
    : out_(std::make_shared<Side>(loop, STDOUT_FILENO)),
      err_(same_file(STDOUT_FILENO, STDERR_FILENO) ? out_ : std::make_shared<Side>(loop, STDERR_FILENO)) {}

void Terminal::line(OutputStream stream, std::string_view prefix, std::string_view text) {
  Side& side = stream == OutputStream::out ? *out_ : *err_;
  std::string whole;
  whole.reserve(prefix.size() + text.size() + 1);
  whole.append(prefix).append(text).push_back('\n');
  side.outlet.write(whole);
  side.write_when_ready();
}

core::Result<void> Terminal::log_by(actors::LogOptions options) {
  if (options.json) {
    options.lines = [this](std::string_view object) { line(OutputStream::err, "", object); };
  } else {
    options.sentences = [this](std::string_view sentence) { line(OutputStream::err, "[troupe] ", sentence); };
  }
  log_ = TRY(actors::Log::open(std::move(options)));
  return {};
}

void Terminal::say(std::string_view text) {
  if (!log_) return line(OutputStream::err, "[troupe] ", text);
  log_->say(actors::Subsystem::launch, actors::LogLevel::info, text);
}

void Terminal::drain() {
  constexpr int kPatienceMilliseconds = 10'000;
  out_->outlet.drain(kPatienceMilliseconds);
  err_->outlet.drain(kPatienceMilliseconds);
}

}  // namespace troupe::apps
