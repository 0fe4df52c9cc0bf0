#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace troupe::apps {

/// Cuts a stream of bytes into whole lines. A line longer than the cap comes out in pieces of it. A carriage
/// return begins the line anew, as a terminal shows it, so that a progress bar is one line at its end.
class LineAssembler {
 public:
  using Sink = std::function<void(std::string_view line)>;  ///< without the newline

  explicit LineAssembler(Sink sink, std::size_t cap_bytes = 64 * 1024)
      : sink_(std::move(sink)), cap_bytes_(cap_bytes) {}

  void feed(std::string_view bytes);
  /// Gives out a last line that has no newline.
  void finish();

 private:
  void emit();

  Sink sink_;
  std::size_t cap_bytes_;
  std::string line_;
};

/// The last lines of a stream, for the report of a failure.
class Tail {
 public:
  explicit Tail(std::size_t lines) : limit_(lines) {}

  void add(std::string_view line);
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  std::size_t limit_;
  std::deque<std::string> lines_;
};

}  // namespace troupe::apps
