#include "apps/command_line/command_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "actors/world/log.hpp"
#include "apps/command_line/say.hpp"
#include "posix/program_end.hpp"
#include "posix/standard_streams.hpp"

namespace troupe::apps {

namespace {

/// "troupe plan layout", as far as it was parsed, and the command that this is.
std::pair<std::string, const CLI::App*> command_of(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  if (chosen.empty()) return {app.get_name(), &app};
  auto [words, last] = command_of(*chosen.front());
  return {app.get_name() + " " + words, last};
}

/// What CLI11 found wrong, and in the order in which they were given the arguments that it does not know.
std::string wrong_with(const CLI::App& app, const CLI::App& command, const CLI::ParseError& error) {
  const auto unknown = app.remaining(true);
  if (unknown.empty()) return error.what();
  std::vector<std::string> known;
  for (const CLI::App* each :
       command.get_subcommands([](const CLI::App* each) { return !each->get_name().empty(); }))
    known.push_back(each->get_name());
  if (!known.empty() && !unknown.front().starts_with('-'))
    return fmt::format("'{}' is not a command; expected {}", unknown.front(), fmt::join(known, ", "));
  if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::ExtrasError)) return error.what();
  return fmt::format("not expected: {}", fmt::join(unknown, " "));
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

std::string message_of(const CLI::App& app, const CLI::ParseError& error) {
  constexpr std::size_t kMost = 400;  // CLI11 repeats its input, however long that is
  const auto [words, command] = command_of(app);
  const std::string what = wrong_with(app, *command, error);
  auto shown = what.substr(0, kMost);
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return fmt::format("{}{}; see `{} --help`", shown, what.size() > kMost ? "..." : "", words);
}

std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    say_error(command_of(app).first, message_of(app, error));
    return kUsageError;
  }
}

}  // namespace troupe::apps
