#include "apps/troupe/launch/input.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <string>
#include <string_view>
#include <system_error>

#include "posix/descriptor.hpp"

namespace troupe::apps {

namespace {

/// How often a launcher in the background looks whether it is in the foreground again.
constexpr auto kPause = std::chrono::milliseconds(300);

}  // namespace

struct Input::Typed : std::enable_shared_from_this<Input::Typed> {
  Typed(asio::io_context& loop, int terminal, int reader, int writer)
      : keyboard(loop, terminal), pipe(loop, writer), timer(loop), of_rank(reader) {}

  void listen() {
    keyboard.async_wait(asio::posix::stream_descriptor::wait_read,
                        [self = shared_from_this()](const std::error_code& error) {
                          if (!error && self->pipe.is_open()) self->read();
                        });
  }

  void read() {
    std::array<char, 4096> typed{};
    const ssize_t got = ::read(keyboard.native_handle(), typed.data(), typed.size());
    if (got > 0) {
      pending.assign(typed.data(), static_cast<std::size_t>(got));
      return write();
    }
    // The end, by Ctrl-D. In the background reading fails instead.
    if (got == 0) return close();
    timer.expires_after(kPause);
    timer.async_wait([self = shared_from_this()](const std::error_code& error) {
      if (!error && self->pipe.is_open()) self->listen();
    });
  }

  void write() {
    const ssize_t written = ::write(pipe.native_handle(), pending.data(), pending.size());
    if (written > 0) pending.erase(0, static_cast<std::size_t>(written));
    if (written < 0 && errno != EAGAIN && errno != EINTR) return close();
    if (pending.empty()) return listen();
    pipe.async_wait(asio::posix::stream_descriptor::wait_write,
                    [self = shared_from_this()](const std::error_code& error) {
                      if (!error && self->pipe.is_open()) self->write();
                    });
  }

  void close() {
    std::error_code ignored;
    timer.cancel();
    keyboard.close(ignored);
    pipe.close(ignored);
  }

  asio::posix::stream_descriptor keyboard;
  asio::posix::stream_descriptor pipe;
  asio::steady_timer timer;
  posix::Descriptor of_rank;
  std::string pending;
};

Input::Input(asio::io_context& loop) : loop_(loop), is_terminal_(::isatty(STDIN_FILENO) != 0) {
  // So that reading fails in the background instead of stopping the launcher.
  if (is_terminal_) ::signal(SIGTTIN, SIG_IGN);
}

Input::~Input() {
  if (typed_) typed_->close();
}

int Input::next() {
  if (!is_terminal_) return ::fcntl(STDIN_FILENO, F_GETFD) < 0 ? -1 : STDIN_FILENO;
  if (typed_) typed_->close();
  typed_.reset();
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return -1;
  ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
  const int terminal = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
  typed_ = std::make_shared<Typed>(loop_, terminal, ends[0], ends[1]);
  typed_->listen();
  return ends[0];
}

void Input::is_handed_over() {
  if (typed_) typed_->of_rank = posix::Descriptor();
}

}  // namespace troupe::apps
