#include "actors/world/log.hpp"

#include <fmt/chrono.h>
#include <fmt/ranges.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "actors/world/variables.hpp"
#include "core/enum_names.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"
#include "core/utf8.hpp"

namespace troupe::actors {

namespace {

constexpr auto kLevelNames = core::enum_names<LogLevel>("trace", "debug", "info", "warning", "error", "off");
constexpr auto kSubsystemNames = core::enum_names<Subsystem>(
    "session", "actors", "transport", "collectives", "checkpoint", "replica", "device", "launch", "tools");

/// spdlog's level "critical" is not used.
spdlog::level::level_enum spdlog_level(LogLevel level) {
  return level == LogLevel::off ? spdlog::level::off
                                : static_cast<spdlog::level::level_enum>(static_cast<int>(level));
}

core::Result<LogLevel> parse_level(std::string_view text) {
  if (const auto level = kLevelNames.find(text)) return *level;
  return core::fail(core::Errc::invalid_argument, "expected a level of {}, found {}",
                    fmt::join(kLevelNames, ", "), core::quoted_excerpt(text));
}

core::Result<Subsystem> parse_subsystem(std::string_view text) {
  if (const auto subsystem = kSubsystemNames.find(text)) return *subsystem;
  return core::fail(core::Errc::invalid_argument, "expected a subsystem of {}, found {}",
                    fmt::join(kSubsystemNames, ", "), core::quoted_excerpt(text));
}

std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

/// So that no text of another rank or of a user breaks a line, or moves the cursor.
std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : core::printable_of(text)) {
    if (c == '\n') {
      line += "\\n";
    } else {
      line += c == '\t' ? ' ' : c;
    }
  }
  return line;
}

/// Which process says a line.
struct Speaker {
  std::optional<core::Rank> rank;
  core::Epoch epoch{};
};

/// "2026-01-31 12:00:00.123 info [rank 3 epoch 1 transport] ...", or an object with the same.
class LineFormatter final : public spdlog::formatter {
 public:
  LineFormatter(Speaker speaker, bool json) : speaker_(speaker), json_(json) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& to) override {
    const auto seconds = std::chrono::floor<std::chrono::seconds>(message.time);
    const auto milliseconds =
        std::chrono::duration_cast<std::chrono::milliseconds>(message.time - seconds).count();
    const auto calendar = fmt::gmtime(std::chrono::system_clock::to_time_t(seconds));
    const std::string_view subsystem(message.logger_name.data(), message.logger_name.size());
    const std::string_view sentence(message.payload.data(), message.payload.size());
    const auto level = kLevelNames[static_cast<LogLevel>(message.level)];
    std::string line;
    if (json_) {
      nlohmann::ordered_json object;
      object["time"] = fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", calendar, milliseconds);
      object["level"] = level;
      object["subsystem"] = subsystem;
      if (speaker_.rank) {
        object["rank"] = speaker_.rank->value;
        object["epoch"] = speaker_.epoch.value;
      }
      object["message"] = sentence;
      line = object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    } else {
      const auto place =
          speaker_.rank ? fmt::format("rank {} epoch {} ", speaker_.rank->value, speaker_.epoch.value) : "";
      line = fmt::format("{:%Y-%m-%d %H:%M:%S}.{:03} {} [{}{}] {}", calendar, milliseconds, level, place,
                         subsystem, one_line(sentence));
    }
    line += '\n';
    to.append(line.data(), line.data() + line.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<LineFormatter>(speaker_, json_);
  }

 private:
  Speaker speaker_;
  bool json_;
};

void write_to_stderr(std::string_view text) {
  // One write, so that lines of several threads and processes stay whole.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

/// What the caller gave, or standard error. It holds no lock: what is called may log.
class OutletSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit OutletSink(const LogOptions& options) : sentences_(options.sentences), lines_(options.lines) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (sentences_) return sentences_({message.payload.data(), message.payload.size()});
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    const std::string_view whole(line.data(), line.size());
    if (lines_) return lines_(whole.substr(0, whole.size() - 1));
    write_to_stderr(whole);
  }
  void flush_() override {}

  std::function<void(std::string_view)> sentences_;
  std::function<void(std::string_view)> lines_;
};

}  // namespace

std::string_view name_of(LogLevel level) noexcept {
  return kLevelNames[level];
}

std::string_view name_of(Subsystem of) noexcept {
  return kSubsystemNames[of];
}

core::Result<LogLevels> parse_log_levels(std::string_view text) {
  LogLevels levels;
  if (text.empty()) return levels;
  const auto parts = parts_of(text);
  for (const auto part : parts) {
    if (part.find('=') == std::string_view::npos) levels.set_all(TRY(parse_level(part)));
  }
  for (const auto part : parts) {
    const auto equals = part.find('=');
    if (equals == std::string_view::npos) continue;
    levels.set(TRY(parse_subsystem(part.substr(0, equals))), TRY(parse_level(part.substr(equals + 1))));
  }
  return levels;
}

core::Result<LogOptions> log_options(const Variables& variables, std::optional<core::Rank> rank,
                                     core::Epoch epoch) {
  LogOptions options;
  options.rank = rank;
  options.epoch = epoch;
  auto levels = parse_log_levels(variables("TROUPE_LOG").value_or(""));
  if (!levels) return core::fail(levels.error().code, "TROUPE_LOG: {}", levels.error().message);
  options.levels = *levels;
  options.json = TRY(read_number(variables, "TROUPE_LOG_JSON", 0, 0, 1)) == 1;
  const auto mebibytes = TRY(read_number(variables, "TROUPE_LOG_FILE_MIB", 0, 0, 1 << 20));
  if (mebibytes == 0) return options;
  if (!has_value(variables, "TROUPE_LOG_DIR")) {
    return core::fail(core::Errc::invalid_argument,
                      "TROUPE_LOG_FILE_MIB asks for a log file, and TROUPE_LOG_DIR does not say where; give "
                      "`troupe launch` --log-dir, or set it");
  }
  options.file_bytes = static_cast<std::size_t>(mebibytes) << 20;
  const auto name = rank ? fmt::format("rank_{}.log", rank->value) : std::string("launcher.log");
  options.file = *variables("TROUPE_LOG_DIR") + "/" + name;
  return options;
}

struct Log::Outlets {
  explicit Outlets(const LogOptions& options)
      : are_lines(options.json && !options.sentences), lines(options.lines) {
    sinks.push_back(std::make_shared<OutletSink>(options));
    constexpr std::size_t kOlderFiles = 2;
    if (!options.file.empty()) {
      sinks.push_back(std::make_shared<spdlog::sinks::rotating_file_sink_mt>(options.file, options.file_bytes,
                                                                             kOlderFiles));
    }
    for (auto& sink : sinks)
      sink->set_formatter(
          std::make_unique<LineFormatter>(Speaker{options.rank, options.epoch}, options.json));
    for (std::size_t i = 0; i < kSubsystems; ++i) {
      loggers[i] = std::make_unique<spdlog::logger>(std::string(kSubsystemNames[static_cast<Subsystem>(i)]),
                                                    sinks.begin(), sinks.end());
      loggers[i]->set_level(spdlog::level::trace);  // Log asks for the level before
      // What a process said last matters most when it is killed.
      loggers[i]->flush_on(spdlog::level::trace);
    }
  }

  const bool are_lines;  ///< an answer, too, is an object on one line
  const std::function<void(std::string_view)> lines;
  std::vector<spdlog::sink_ptr> sinks;
  std::array<std::unique_ptr<spdlog::logger>, kSubsystems> loggers;
};

core::Result<std::unique_ptr<Log>> Log::open(LogOptions options) {
  try {
    const auto levels = options.levels;
    return std::unique_ptr<Log>(new Log(levels, std::make_unique<Outlets>(options)));
  } catch (const std::exception& error) {
    return core::fail(core::Errc::io, "cannot open the log file {}: {}; give another directory", options.file,
                      error.what());
  }
}

Log::Log(LogLevels levels, std::unique_ptr<Outlets> outlets)
    : levels_(levels), outlets_(std::move(outlets)) {}

Log::~Log() = default;

void Log::say(Subsystem of, LogLevel level, std::string_view sentence) const {
  if (!is_on(of, level) || level == LogLevel::off) return;
  auto& logger = *outlets_->loggers[static_cast<std::size_t>(of)];
  logger.log(spdlog_level(level), spdlog::string_view_t(sentence.data(), sentence.size()));
}

void Log::answer(Subsystem of, std::string_view text) const {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  if (!outlets_->are_lines && outlets_->lines) return outlets_->lines(text);
  if (!outlets_->are_lines) return write_to_stderr(std::string(text) + "\n");
  auto& logger = *outlets_->loggers[static_cast<std::size_t>(of)];
  logger.log(spdlog::level::info, spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace troupe::actors
