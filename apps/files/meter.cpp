#include "apps/files/meter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "apps/files/text.hpp"

namespace troupe::apps {

namespace {

constexpr int kBarColumns = 30;

}  // namespace

Meter::Meter(std::string what, std::uint64_t total_bytes)
    : what_(std::move(what)),
      total_(total_bytes),
      options_(progress_options_for(stderr, 0)),
      began_(Clock::now()),
      shown_(began_) {}

Meter::~Meter() {
  // The line has served; what follows says how it went.
  if (open_line_) fmt::print(stderr, "\r\x1b[2K");
  std::fflush(stderr);
}

void Meter::add(std::uint64_t bytes) {
  done_ += bytes;
  const auto now = Clock::now();
  const std::chrono::nanoseconds interval =
      options_.terminal ? std::chrono::milliseconds(100) : options_.interval;
  if (now - shown_ >= interval) show(now);
}

double Meter::seconds() const {
  return std::chrono::duration<double>(Clock::now() - began_).count();
}

double Meter::megabytes_per_second() const {
  const double spent = seconds();
  return spent > 0 ? static_cast<double>(done_) / 1e6 / spent : 0;
}

void Meter::show(Clock::time_point now) {
  shown_ = now;
  const double share =
      total_ == 0 ? 1 : std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  const double spent = std::chrono::duration<double>(now - began_).count();
  const auto left =
      std::chrono::seconds(share > 0 ? static_cast<std::int64_t>(spent / share - spent + 0.5) : 0);
  const auto full = static_cast<int>(share * kBarColumns);
  const auto text =
      fmt::format("{} [{:#<{}}{:.<{}}] {:3.0f} %  {} of {}  {}/s  left {}", what_, "", full, "",
                  kBarColumns - full, 100 * share, bytes_text(done_), bytes_text(total_),
                  bytes_text(static_cast<std::uint64_t>(megabytes_per_second() * 1e6)), clock_text(left));
  if (options_.terminal) {
    fmt::print(stderr, "\r\x1b[2K{}", text.substr(0, options_.columns - 1));
    open_line_ = true;
  } else {
    fmt::print(stderr, "{}\n", text);
  }
  std::fflush(stderr);
}

}  // namespace troupe::apps
