#include "apps/troupe/launch/terminal.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace troupe::apps {

using actors::OutputStream;

namespace {

bool same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

Terminal::Side::Side(asio::io_context& loop, int fd) : outlet(fd), ready(loop) {
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  std::error_code error;
  if (copy < 0) return;
  ready.assign(copy, error);
  if (error) ::close(copy);
}

void Terminal::Side::write_when_ready() {
  if (waiting || outlet.is_empty() || !ready.is_open()) return;
  waiting = true;
  ready.async_wait(asio::posix::stream_descriptor::wait_write, [this](const std::error_code& error) {
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

void Terminal::say(std::string_view text) {
  line(OutputStream::err, "[troupe] ", text);
}

void Terminal::drain() {
  constexpr int kPatienceMilliseconds = 10'000;
  out_->outlet.drain(kPatienceMilliseconds);
  err_->outlet.drain(kPatienceMilliseconds);
}

}  // namespace troupe::apps
