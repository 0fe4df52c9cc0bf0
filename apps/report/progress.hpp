#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "apps/report/run_record.hpp"

namespace troupe::apps {

struct ProgressOptions {
  std::int64_t total_steps = 0;
  /// One line rewritten in place, with this many columns; otherwise a line every `interval`.
  bool terminal = false;
  std::size_t columns = 100;
  std::chrono::nanoseconds interval = std::chrono::seconds(5);
};

/// What suits the stream: a terminal and its width, or plain lines.
ProgressOptions progress_options_for(std::FILE* stream, std::int64_t total_steps);

/// Shows the progress of the run to a person at the terminal. Times are the caller's.
class Progress {
 public:
  Progress(std::FILE* stream, ProgressOptions options, std::chrono::nanoseconds now);

  void step_done(const StepRecord& step, std::chrono::nanoseconds now);
  /// Shows the last step and ends the line.
  void finish(std::chrono::nanoseconds now);
  /// Prints a separate line between two states of the progress line.
  void note(const std::string& text);

 private:
  std::string line(std::chrono::nanoseconds now) const;
  void show(std::chrono::nanoseconds now);

  std::FILE* stream_;
  ProgressOptions options_;
  std::chrono::nanoseconds began_;
  std::chrono::nanoseconds last_shown_;
  std::optional<StepRecord> step_;
  std::optional<double> evaluation_loss_;  // the latest
  std::int64_t done_ = 0;
  bool open_line_ = false;
};

/// 95 s as "1:35", 4000 s as "1:06:40".
std::string clock_text(std::chrono::seconds duration);
/// 1234 as "1.23k", 45678901 as "45.7M".
std::string short_number(double value);

}  // namespace troupe::apps
