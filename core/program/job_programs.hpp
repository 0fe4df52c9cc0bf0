#pragma once

#include <cstdint>
#include <vector>

#include "core/program/check_programs.hpp"
#include "core/program/plan_program.hpp"

namespace troupe::core {

/// The programs of all ranks that share the inputs. Ranks whose lanes lie alike in the tree share one, so
/// 100,000 ranks have a few.
struct JobPrograms {
  std::vector<int> sizes;         ///< of domain 0
  std::vector<Program> programs;  ///< each with the coordinates of the first rank that runs it
  std::vector<int> of_place;      ///< by place in domain 0, the last axis fastest: which program
};

Result<JobPrograms> plan_all(const ProgramInputs& inputs);

/// A job of as few ranks as stand for all: of each axis one coordinate for each kind of slice through the
/// mesh, and of ranks that neighbours post operations with, one for each kind of group. check_programs()
/// finds in it what it would find in the whole job. Groups that reduce gradients of experts are taken as
/// large as the dense ones they lie in.
CheckedJob representatives(const JobPrograms& job);

}  // namespace troupe::core
