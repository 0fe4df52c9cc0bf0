#include "apps/troupe/commands.hpp"

#include <span>
#include <string>
#include <vector>

#include "apps/command_line/command_line.hpp"
#include "apps/troupe/bench/bench_command.hpp"
#include "apps/troupe/checkpoint/checkpoint_command.hpp"
#include "apps/troupe/convert/convert_command.hpp"
#include "apps/troupe/diagnose/diagnose_command.hpp"
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
  add_diagnose_command(troupe, exit_code);
  add_doctor_command(troupe, exit_code);
  add_checkpoint_command(troupe, exit_code);
  add_convert_command(troupe, exit_code);
}

int run_troupe(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == "launch") return run_launch(std::span(words).subspan(1));

  // What is printed is the result, often a file: less than all of it is a failure.
  return run_program("troupe", kUsageError, [&] {
    int exit_code = 0;
    CLI::App app("Distributed training as a company of actors", "troupe");
    take_last_of_repeated(app);
    add_commands(app, exit_code);
    return parse_command_line(app, argc, argv).value_or(exit_code);
  });
}

}  // namespace troupe::apps
