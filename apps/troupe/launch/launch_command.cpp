#include "apps/troupe/launch/launch_command.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "apps/command_line/command_line.hpp"
#include "apps/command_line/say.hpp"
#include "apps/troupe/launch/job.hpp"
#include "apps/troupe/launch/launcher.hpp"
#include "apps/troupe/launch/options.hpp"
#include "posix/program_end.hpp"

namespace troupe::apps {

namespace {

int refuse(const core::Error& error, int exit_code) {
  say_error("troupe launch", error.message);
  return exit_code;
}

}  // namespace

void add_launch_command(CLI::App& troupe, int& exit_code) {
  troupe.add_subcommand("launch", "Run a program once per rank, on one node or on several")
      ->callback([&exit_code] { exit_code = run_launch({}); });
}

int run_launch(std::span<const std::string> arguments) {
  const posix::NamedProgram named("troupe launch", 1);
  auto options = parse_launch_options(arguments);
  if (!options) return refuse(options.error(), kUsageError);
  if (!*options) return 0;
  const auto sources = (*options)->from_environment;
  auto job = prepare_job(std::move(**options));
  if (!job) return refuse({job.error().code, with_sources(job.error().message, sources)}, kUsageError);
  const auto exit_code = run_job(*job);
  if (exit_code) return *exit_code;
  const bool is_mistake = exit_code.error().code == core::Errc::invalid_argument;
  return refuse({exit_code.error().code, with_sources(exit_code.error().message, sources)},
                is_mistake ? kUsageError : 1);
}

}  // namespace troupe::apps
