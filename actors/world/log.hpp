#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "actors/world/environment.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::actors {

enum class LogLevel : std::uint8_t { trace, debug, info, warning, error, off };

/// The parts of Troupe that say something. Each has a level of its own.
enum class Subsystem : std::uint8_t {
  session,
  actors,
  transport,
  collectives,
  checkpoint,
  replica,
  device,
  launch,
  tools
};
inline constexpr std::size_t kSubsystems = 9;

std::string_view name_of(LogLevel level) noexcept;
std::string_view name_of(Subsystem of) noexcept;

/// The least level that each subsystem says.
class LogLevels {
 public:
  LogLevels() { least_.fill(LogLevel::info); }

  LogLevel of(Subsystem subsystem) const { return least_[static_cast<std::size_t>(subsystem)]; }
  void set(Subsystem subsystem, LogLevel level) { least_[static_cast<std::size_t>(subsystem)] = level; }
  void set_all(LogLevel level) { least_.fill(level); }

  friend bool operator==(const LogLevels&, const LogLevels&) = default;

 private:
  std::array<LogLevel, kSubsystems> least_{};
};

/// "warning", "info,transport=debug": a level for all subsystems, and levels of some, which precede it. Empty
/// text is "info". Errc::invalid_argument lists the levels, or the subsystems, that are known.
core::Result<LogLevels> parse_log_levels(std::string_view text);

struct LogOptions {
  LogLevels levels;
  bool json = false;           ///< an object per line, instead of text
  std::string file;            ///< lines also go there; empty: nowhere else
  std::size_t file_bytes = 0;  ///< beyond this the file is rotated; two older ones are kept
  std::optional<core::Rank> rank;
  core::Epoch epoch{};
  /// Receives sentences without time, level and place, in place of standard error; from any thread.
  std::function<void(std::string_view sentence)> sentences;
  /// Receives whole lines without a line break, as above.
  std::function<void(std::string_view line)> lines;
};

/// What TROUPE_LOG (levels), TROUPE_LOG_JSON (1) and TROUPE_LOG_FILE_MIB with TROUPE_LOG_DIR (the rank's
/// file) say. Errc::invalid_argument names the variable.
core::Result<LogOptions> log_options(const Variables& variables, std::optional<core::Rank> rank = {},
                                     core::Epoch epoch = {});

/// Where all that a process says to people goes: a line per event on standard error, and in a file if there
/// is one. Thread safe.
class Log {
 public:
  /// Errc::io if there cannot be such a file.
  static core::Result<std::unique_ptr<Log>> open(LogOptions options);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  bool is_on(Subsystem of, LogLevel level) const { return level >= levels_.of(of); }
  /// Nothing happens below the subsystem's level.
  void say(Subsystem of, LogLevel level, std::string_view sentence) const;
  /// The answer to a question, which may have several lines: whatever the levels are.
  void answer(Subsystem of, std::string_view text) const;

 private:
  struct Outlets;
  Log(LogLevels levels, std::unique_ptr<Outlets> outlets);

  const LogLevels levels_;
  const std::unique_ptr<Outlets> outlets_;
};

/// One subsystem's way to a log, which must outlive it. Where a level is off nothing is formatted: it costs a
/// comparison. A default one says nothing.
class Logger {
 public:
  Logger() = default;
  Logger(const Log& log, Subsystem of) : log_(&log), of_(of) {}

  bool is_on(LogLevel level) const { return log_ != nullptr && log_->is_on(of_, level); }
  void say(LogLevel level, std::string_view sentence) const {
    if (is_on(level)) log_->say(of_, level, sentence);
  }

  template <class... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) const {
    if (is_on(LogLevel::debug)) say(LogLevel::debug, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    if (is_on(LogLevel::info)) say(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) const {
    if (is_on(LogLevel::warning)) say(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) const {
    if (is_on(LogLevel::error)) say(LogLevel::error, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  const Log* log_ = nullptr;
  Subsystem of_ = Subsystem::session;
};

}  // namespace troupe::actors
