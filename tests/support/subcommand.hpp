#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "apps/command_line/command_line.hpp"

namespace troupe::tests {

struct Output {
  int exit_code = 0;
  std::string out;
  std::string err;
};

/// `troupe WORDS`, in this process. `add` is the function that adds a command to the program.
inline Output run_subcommand(void (*add)(CLI::App&, int&), const std::vector<std::string>& words) {
  Output run;
  CLI::App app("Test", "troupe");
  app.require_subcommand(1);
  add(app, run.exit_code);
  std::vector<const char*> argv{"troupe"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const auto refused = apps::parse_command_line(app, static_cast<int>(argv.size()), argv.data());
  run.exit_code = refused.value_or(run.exit_code);
  std::fflush(stdout);
  std::fflush(stderr);
  run.out = testing::internal::GetCapturedStdout();
  run.err = testing::internal::GetCapturedStderr();
  return run;
}

}  // namespace troupe::tests
