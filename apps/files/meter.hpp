#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "apps/report/progress.hpp"

namespace troupe::apps {

/// Shows on stderr how far work on many bytes is: a bar in a terminal, else a line every few seconds.
class Meter {
 public:
  /// `what` is being done, for example "verifying".
  Meter(std::string what, std::uint64_t total_bytes);
  ~Meter();
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  void add(std::uint64_t bytes);

  std::uint64_t bytes() const { return done_; }
  double seconds() const;
  /// 10^6 bytes.
  double megabytes_per_second() const;

 private:
  using Clock = std::chrono::steady_clock;

  void show(Clock::time_point now);

  std::string what_;
  std::uint64_t total_;
  std::uint64_t done_ = 0;
  ProgressOptions options_;
  Clock::time_point began_;
  Clock::time_point shown_;
  bool open_line_ = false;
};

}  // namespace troupe::apps
