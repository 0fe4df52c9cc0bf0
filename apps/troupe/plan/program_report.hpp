#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/troupe/plan/program_inputs.hpp"
#include "core/result.hpp"

namespace troupe::apps {

struct ProgramReportArguments {
  ProgramArguments program;
  std::optional<int> rank;  ///< none: rank 0 is shown, and all ranks are written
  std::string output;       ///< where programs go as JSON; empty: they are printed for people
};

/// What `troupe plan program` prints: the entries of one rank's step, with the hash of every communicator; or
/// what it wrote to `output`.
core::Result<std::string> report_program(const ProgramReportArguments& arguments);

/// What `troupe plan check` prints when the programs of all ranks pass each other; otherwise
/// the Error says what is wrong: Errc::mismatch, aborted and internal are programs' (check_programs.hpp).
core::Result<std::string> report_check(const ProgramArguments& arguments);
/// The same for programs in files, which together have one for each rank.
core::Result<std::string> report_check(const std::vector<std::string>& files, bool json);

}  // namespace troupe::apps
