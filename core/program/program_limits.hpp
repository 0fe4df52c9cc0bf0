#pragma once

#include "core/program/program_file.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Whether the programs of a file can be gone through: numbers within bounds, units and streams that are
/// there, sizes that fit each other. Errc::corrupt names what is wrong.
Result<void> check_limits(const ProgramFile& file);

}  // namespace troupe::core
