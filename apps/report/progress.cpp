#include "apps/report/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "posix/standard_streams.hpp"

namespace troupe::apps {

using std::chrono::nanoseconds;
using std::chrono::seconds;

std::string clock_text(seconds duration) {
  const auto total = std::max<std::int64_t>(duration.count(), 0);
  if (total < 3600) return fmt::format("{}:{:02}", total / 60, total % 60);
  return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
}

std::string short_number(double value) {
  const char* suffix = "";
  for (const char* larger : {"k", "M", "G", "T"}) {
    if (value < 999.5) break;
    value /= 1000;
    suffix = larger;
  }
  return fmt::format("{:.3g}{}", value, suffix);
}

ProgressOptions progress_options_for(std::FILE* stream, std::int64_t total_steps) {
  ProgressOptions options{.total_steps = total_steps, .terminal = isatty(fileno(stream)) == 1};
  winsize window{};
  if (options.terminal && ioctl(fileno(stream), TIOCGWINSZ, &window) == 0 && window.ws_col > 0) {
    options.columns = window.ws_col;
  }
  return options;
}

Progress::Progress(std::FILE* stream, ProgressOptions options, nanoseconds now)
    : stream_(stream), options_(options), began_(now), last_shown_(now) {}

void Progress::step_done(const StepRecord& step, nanoseconds now) {
  const bool first = !step_;
  step_ = step;
  if (step.evaluation_loss) evaluation_loss_ = step.evaluation_loss;
  ++done_;
  // A terminal is rewritten at most ten times per second; readers of a log get the first step immediately.
  const nanoseconds interval = options_.terminal ? std::chrono::milliseconds(100) : options_.interval;
  if (first || now - last_shown_ >= interval) show(now);
}

std::string Progress::line(nanoseconds now) const {
  const StepRecord& step = *step_;
  const auto width = fmt::formatted_size("{}", options_.total_steps);
  std::string text = fmt::format("step {:>{}}/{}", step.step + 1, width, options_.total_steps);
  text += step.target_tokens == 0 ? "  no target token" : fmt::format("  loss {:.4f}", step.loss);
  if (evaluation_loss_) text += fmt::format("  eval {:.4f}", *evaluation_loss_);
  text += fmt::format("  {} tokens/s", short_number(step.tokens_per_second));
  if (step.model_flop_utilisation) text += fmt::format("  MFU {:.1f} %", 100 * *step.model_flop_utilisation);
  const double exposed = step.step_seconds > 0 ? step.exposed_communication_seconds / step.step_seconds : 0;
  text += fmt::format("  exposed {:.1f} %", 100 * exposed);
  const std::int64_t steps_left = std::max<std::int64_t>(options_.total_steps - step.step - 1, 0);
  const nanoseconds left = (now - began_) / done_ * steps_left;
  text += fmt::format("  left {}", clock_text(std::chrono::round<seconds>(left)));
  if (!step.committed) text += "  (refused)";
  return text;
}

void Progress::show(nanoseconds now) {
  const std::string text = line(now);
  if (options_.terminal) {
    // A line wider than the terminal would wrap and could not be rewritten.
    posix::tell(stream_, fmt::format("\r\x1b[2K{}", text.substr(0, options_.columns - 1)));
    open_line_ = true;
  } else {
    posix::tell(stream_, fmt::format("{}\n", text));
  }
  std::fflush(stream_);
  last_shown_ = now;
}

void Progress::finish(nanoseconds now) {
  if (step_) show(now);
  if (open_line_) posix::tell(stream_, "\n");
  open_line_ = false;
  std::fflush(stream_);
}

void Progress::note(const std::string& text) {
  posix::tell(stream_, fmt::format("{}{}\n", open_line_ ? "\r\x1b[2K" : "", text));
  open_line_ = false;
  std::fflush(stream_);
}

}  // namespace troupe::apps
