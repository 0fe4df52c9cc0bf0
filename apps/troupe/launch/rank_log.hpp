#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/world/clock.hpp"
#include "actors/world/process.hpp"
#include "apps/troupe/launch/environment.hpp"
#include "apps/troupe/launch/job.hpp"
#include "apps/troupe/launch/lines.hpp"

namespace troupe::apps {

/// Where the whole lines of all ranks go.
class Console {
 public:
  virtual ~Console() = default;
  virtual void line(actors::OutputStream stream, std::string_view prefix, std::string_view text) = 0;
};

/// The output of one process start: to its files byte by byte, to the console line by line, and its last
/// lines on stderr kept.
class RankLog {
 public:
  /// `slot` is one of this node. A spare has no numbers.
  RankLog(const Job& job, int generation, int slot, std::optional<RankNumbers> numbers, Console& console,
          const actors::Clock& clock);
  ~RankLog();
  RankLog(const RankLog&) = delete;
  RankLog& operator=(const RankLog&) = delete;

  /// What the process is from now on.
  void becomes(RankNumbers numbers);
  void output(actors::OutputStream stream, std::string_view bytes);
  /// Gives out a last line without newline; once it is said, more output is still taken.
  void finish(actors::OutputStream stream);
  const Tail& last_error_lines() const { return errors_; }

 private:
  struct Side {
    LineAssembler lines;
    int file = -1;
    int filtered_file = -1;
    const std::vector<std::string>* filters = nullptr;
    bool redirected = false;
    bool shown = true;
    std::chrono::nanoseconds progress_is_due{};
  };
  void line(actors::OutputStream stream, std::string_view text, LineKind kind);
  Side& side(actors::OutputStream stream) { return sides_[stream == actors::OutputStream::out ? 0 : 1]; }

  const Job& job_;
  std::string prefix_;
  Console& console_;
  const actors::Clock& clock_;
  Tail errors_{10};
  std::array<Side, 2> sides_;
};

/// "[rank 3] ", or what the template says with ${role_name}, ${local_rank}, ${rank}, ${hostname}.
std::string line_prefix(const std::string& role, RankNumbers of, const std::string& line_template);

}  // namespace troupe::apps
