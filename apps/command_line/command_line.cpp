#include "apps/command_line/command_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace troupe::apps {

namespace {

/// "troupe plan layout", as far as it was parsed.
std::string command_of(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app.get_name() : app.get_name() + " " + command_of(*chosen.front());
}

}  // namespace

std::string message_of(const CLI::ParseError& error, std::string_view command) {
  constexpr std::size_t kMost = 400;  // CLI11 repeats its input, however long that is
  const std::string_view what = error.what();
  std::string shown(what.substr(0, kMost));
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return fmt::format("{}{}; see `{} --help`", shown, what.size() > kMost ? "..." : "", command);
}

std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    const std::string command = command_of(app);
    fmt::print(stderr, "{}: {}\n", command, message_of(error, command));
    return kUsageError;
  }
}

}  // namespace troupe::apps
