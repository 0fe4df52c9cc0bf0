#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>

namespace troupe::apps {

inline constexpr int kUsageError = 2;  ///< exit code for an invalid command line

/// What main() does: runs `body`, which returns an exit code, and writes out what it printed. Where memory or
/// threads run out, or standard output cannot be written, a sentence on stderr begins with `program`, and the
/// exit code is `failed`.
int run_program(const char* program, int failed, const std::function<int()>& body);

/// For an app without options yet, and the commands that it is given: of an option that is given twice the
/// last counts, so that scripts which wrap a command line may add their own at its end. Lists keep all their
/// values.
void take_last_of_repeated(CLI::App& app);

/// What is wrong with the command line that `app` was given, as one sentence of bounded length with a hint
/// where to read more.
std::string message_of(const CLI::App& app, const CLI::ParseError& error);

/// Parses the command line, which runs the callbacks of its commands. Returns an exit code if the program
/// should end now: 0 if help or the version was requested and printed, kUsageError with one sentence on
/// stderr.
std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv);

}  // namespace troupe::apps
