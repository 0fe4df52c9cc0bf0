#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <vector>

#include "apps/command_line/command_line.hpp"
#include "apps/troupe/commands.hpp"
#include "apps/troupe/launch/launch_command.hpp"

int main(int argc, char** argv) {
  using namespace troupe;

  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == "launch") return apps::run_launch(std::span(words).subspan(1));

  int exit_code = 0;
  CLI::App app("Distributed training as a company of actors", "troupe");
  apps::add_commands(app, exit_code);
  return apps::parse_command_line(app, argc, argv).value_or(exit_code);
}
