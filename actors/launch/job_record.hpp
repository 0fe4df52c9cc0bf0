#pragma once

#include <string>
#include <vector>

namespace troupe::actors {

/// What the launcher of node 0 records about a job, so that another launcher can go on with it.
struct JobRecord {
  std::string job;
  std::string secret;  ///< hexadecimal, where launchers of one host meet by one of their own; or empty
  std::vector<std::string> program;
  int generation = 0;
  int restarts = 0;
  std::vector<int> ranks;   ///< by node, at the beginning
  std::vector<int> spares;  ///< by node
  std::vector<int> slots;   ///< by rank, of the generation
};

}  // namespace troupe::actors
