#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <vector>

#include "apps/troupe/bench/bench_command.hpp"
#include "apps/troupe/checkpoint/checkpoint_command.hpp"
#include "apps/troupe/doctor/doctor_command.hpp"
#include "apps/troupe/launch/launch_command.hpp"
#include "apps/troupe/plan/plan_command.hpp"
#include "apps/troupe/simulate/simulate_command.hpp"
#include "core/version.hpp"

int main(int argc, char** argv) {
  using namespace troupe;

  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == "launch") return apps::run_launch(std::span(words).subspan(1));

  int exit_code = 0;
  CLI::App app("Distributed training as a company of actors", "troupe");
  app.set_version_flag("--version", std::string("troupe ") + core::kVersion);
  app.require_subcommand(1);
  apps::add_launch_command(app, exit_code);
  apps::add_plan_command(app, exit_code);
  apps::add_simulate_command(app, exit_code);
  apps::add_bench_command(app, exit_code);
  apps::add_doctor_command(app, exit_code);
  apps::add_checkpoint_command(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return exit_code;
}
