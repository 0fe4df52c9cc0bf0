#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troupe::tests {

struct CommandResult {
  int exit_code = -1;  ///< 128 + n when it was killed by signal n
  std::string output;  ///< standard output and error, as they came
};

/// Runs a program in a process group of its own until it ends; after `patience`, times TROUPE_TEST_PATIENCE
/// where the environment has it, the group is killed and exit_code is 124. `during` is called about every
/// millisecond meanwhile.
CommandResult run_command(const std::vector<std::string>& arguments, std::chrono::seconds patience,
                          const std::function<void()>& during = {});
/// The same, and `during` is given the output so far.
CommandResult run_command(const std::vector<std::string>& arguments, std::chrono::seconds patience,
                          const std::function<void(const std::string&)>& during);

/// Processes whose environment holds this NAME=value.
std::vector<int> processes_with(const std::string& variable);
/// The same, with their environments: each variable between two zeros.
std::map<int, std::string> environments_with(const std::string& variable);
/// The value of a variable in one of these, if it is there.
std::optional<int> number_in(const std::string& environment, const std::string& name);

/// Names below /dev/shm that begin with "troupe-" and contain `text`.
std::vector<std::string> segments_with(const std::string& text);

}  // namespace troupe::tests
