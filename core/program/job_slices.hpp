#pragma once

#include <vector>

#include "core/plan/mesh.hpp"
#include "core/program/check_programs.hpp"
#include "core/program/program.hpp"

namespace troupe::core {

/// Like checked_job(), with just enough ranks to stand for all. Ranks that share a replica of the model
/// (those connected by groups other than data-parallel ones) form a slice; of slices whose ranks run the same
/// programs only the first is in it. Equal programs have one address.
CheckedJob checked_slices(const Mesh& mesh, const std::vector<const Program*>& programs);

}  // namespace troupe::core
