#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "apps/command_line/command_line.hpp"
#include "apps/troupe/plan/plan_command.hpp"

namespace troupe::apps {

struct Output {
  int exit_code = 0;
  std::string out;
  std::string err;
};

/// `troupe plan ARGUMENTS`.
inline Output run_plan(const std::string& arguments) {
  Output run;
  CLI::App app("Test", "troupe");
  add_plan_command(app, run.exit_code);
  std::istringstream rest(arguments);
  std::vector<std::string> words{"troupe", "plan"};
  words.insert(words.end(), std::istream_iterator<std::string>(rest), {});
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const auto refused = parse_command_line(app, static_cast<int>(argv.size()), argv.data());
  run.exit_code = refused.value_or(run.exit_code);
  std::fflush(stdout);
  std::fflush(stderr);
  run.out = testing::internal::GetCapturedStdout();
  run.err = testing::internal::GetCapturedStderr();
  return run;
}

}  // namespace troupe::apps
