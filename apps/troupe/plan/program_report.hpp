#pragma once

#include <string>

#include "apps/troupe/plan/program_inputs.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// What `troupe plan program` prints: the entries of one rank's step, with the hash of every communicator.
core::Result<std::string> report_program(const ProgramArguments& arguments);

/// What `troupe plan check` prints when the programs of all ranks pass each other; what is wrong is the
/// Error.
core::Result<std::string> report_check(const ProgramArguments& arguments);

}  // namespace troupe::apps
