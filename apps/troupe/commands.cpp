#include "apps/troupe/commands.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "apps/command_line/command_line.hpp"
#include "apps/troupe/bench/bench_command.hpp"
#include "apps/troupe/checkpoint/checkpoint_command.hpp"
#include "apps/troupe/convert/convert_command.hpp"
#include "apps/troupe/doctor/doctor_command.hpp"
#include "apps/troupe/launch/launch_command.hpp"
#include "apps/troupe/plan/plan_command.hpp"
#include "apps/troupe/simulate/simulate_command.hpp"
#include "core/version.hpp"

namespace troupe::apps {

void add_commands(CLI::App& troupe, int& exit_code) {
  troupe.set_version_flag("--version", std::string("troupe ") + core::kVersion);
  troupe.require_subcommand(1);
  add_launch_command(troupe, exit_code);
  add_plan_command(troupe, exit_code);
  add_simulate_command(troupe, exit_code);
  add_bench_command(troupe, exit_code);
  add_doctor_command(troupe, exit_code);
  add_checkpoint_command(troupe, exit_code);
  add_convert_command(troupe, exit_code);
}

namespace {

int output_failed(const std::error_code& error) {
  fmt::print(stderr, "troupe: cannot write to standard output: {}\n", error.message());
  return kUsageError;
}

}  // namespace

int run_troupe(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == "launch") return run_launch(std::span(words).subspan(1));

  int exit_code = 0;
  CLI::App app("Distributed training as a company of actors", "troupe");
  add_commands(app, exit_code);
  try {
    exit_code = parse_command_line(app, argc, argv).value_or(exit_code);
  } catch (const std::system_error& error) {  // of fmt::print
    return output_failed(error.code());
  }
  // What is printed is the result, often a file: less than all of it is a failure.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    return output_failed(errno != 0 ? std::error_code(errno, std::generic_category())
                                    : std::make_error_code(std::errc::io_error));
  return exit_code;
}

}  // namespace troupe::apps
