#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::apps {

inline constexpr int kUsageError = 2;  ///< exit code for a command line that cannot be right

/// What CLI11 found wrong, as one sentence of a bounded length that names the option. `command` is for the
/// hint where to read on.
std::string message_of(const CLI::ParseError& error, std::string_view command);

/// Reads the command line, which runs the callbacks of its commands. An exit code where the program is to end
/// now: 0 when help or the version was asked for and printed, kUsageError with one sentence on stderr.
std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv);

}  // namespace troupe::apps
