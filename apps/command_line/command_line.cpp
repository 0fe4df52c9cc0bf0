#include "apps/command_line/command_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <system_error>

#include "actors/world/log.hpp"
#include "apps/command_line/say.hpp"
#include "posix/program_end.hpp"
#include "posix/standard_streams.hpp"

namespace troupe::apps {

namespace {

/// "troupe plan layout", as far as it was parsed.
std::string command_of(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app.get_name() : app.get_name() + " " + command_of(*chosen.front());
}

}  // namespace

int run_program(const char* program, int failed, const std::function<int()>& body) {
  const posix::NamedProgram named(program, failed);
  int code = failed;
  std::string why;
  try {
    if (const auto log = actors::log_options(actors::process_variables()); !log) {
      say_error(program, log.error().message);
      return kUsageError;
    }
    code = body();
  } catch (const std::bad_alloc&) {  // of a library that has its own way to find memory
    posix::end_program(posix::kNoMemory);
  } catch (const std::system_error& error) {
    // Thrown by fmt::print, or by a thread that could not be started.
    why = std::ferror(stdout) != 0 ? "cannot write to standard output: " + error.code().message()
                                   : fmt::format("{}{}", error.what(), posix::advice_for(error.code()));
  }
  if (const auto written = posix::flush_standard_output(); !written && why.empty())
    why = written.error().message;
  if (why.empty()) return code;
  say_error(program, why);
  return code == 0 ? failed : code;
}

void take_last_of_repeated(CLI::App& app) {
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

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
    say_error(command, message_of(error, command));
    return kUsageError;
  }
}

}  // namespace troupe::apps
