#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::apps {

enum class LineKind : std::uint8_t {
  whole,     ///< ended by a newline, by the cap or by the end of the stream
  progress,  ///< what a terminal shows at the moment; more of the line follows
  repeated,  ///< whole, and the last progress was the same
};

/// Cuts a stream of bytes into whole lines. A line longer than the cap comes out in pieces of it. A carriage
/// return begins the line anew, as a terminal shows it, so that a progress bar is one line at its end.
class LineAssembler {
 public:
  using Sink = std::function<void(std::string_view line, LineKind kind)>;  ///< without the newline

  explicit LineAssembler(Sink sink, std::size_t cap_bytes = 64 * 1024)
      : sink_(std::move(sink)), cap_bytes_(cap_bytes) {}

  void feed(std::string_view bytes);
  /// Gives out the present state of a line that is drawn again and again, if there is one, and a new one.
  /// False if not.
  bool show_progress();
  /// Gives out a last line that has no newline.
  void finish();

 private:
  void emit();

  Sink sink_;
  std::size_t cap_bytes_;
  std::string line_;
  std::optional<std::string> progress_;  ///< what was given out of this line
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
