#pragma once

#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "apps/troupe/plan/plan_command.hpp"
#include "tests/support/subcommand.hpp"

namespace troupe::apps {

using tests::Output;

/// `troupe plan ARGUMENTS`.
inline Output run_plan(const std::string& arguments) {
  std::istringstream rest(arguments);
  std::vector<std::string> words{"plan"};
  words.insert(words.end(), std::istream_iterator<std::string>(rest), {});
  return tests::run_subcommand(add_plan_command, words);
}

}  // namespace troupe::apps
