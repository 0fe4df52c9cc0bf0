#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::apps {

inline constexpr int kUsageError = 2;  ///< exit code for an invalid command line

/// What CLI11 found wrong, as one sentence of bounded length that names the option. `command` is for the hint
/// where to read more.
std::string message_of(const CLI::ParseError& error, std::string_view command);

/// Parses the command line, which runs the callbacks of its commands. Returns an exit code if the program
/// should end now: 0 if help or the version was requested and printed, kUsageError with one sentence on
/// stderr.
std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv);

}  // namespace troupe::apps
