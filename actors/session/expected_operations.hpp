#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "actors/planes/step/training_plan.hpp"
#include "core/program/program.hpp"
#include "core/program/program_text.hpp"
#include "gpu/collective/expected.hpp"

namespace troupe::actors {

using ExpectedOperations = std::set<gpu::ExpectedOperation>;

/// What a step posts to each communicator, the same on all its members.
std::map<core::Communicator, ExpectedOperations> expected_of_step(const core::Program& program,
                                                                  const core::Mesh& mesh);

/// What the trainer posts to its group of this name as its member `index`: what it has declared for an axis,
/// messages of neighbours, and the usual collectives where nothing is known.
ExpectedOperations expected_of_trainer(const TrainingPlan& plan, const std::string& group, int index,
                                       int members);

}  // namespace troupe::actors
