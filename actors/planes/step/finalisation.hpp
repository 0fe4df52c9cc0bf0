#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/options/options.hpp"
#include "core/program/program.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// Errc::invalid_argument names an option about the end of a step that does not fit the others, or a pattern
/// of TrainingOptions::f32_gradients that is no parameter's name.
core::Result<void> check_finalisation(const core::TrainingOptions& options,
                                      std::span<const core::ParameterSpec> specs);

/// What the program of a step ends with.
std::vector<core::Finish> finish_of(const core::TrainingOptions& options);

/// The dtype in which a parameter's gradients are kept.
core::DType gradient_dtype_of(const core::ParameterSpec& spec, const core::TrainingOptions& options);
/// And the one in which those of parameters of a dtype are sent.
core::DType wire_dtype_of(core::DType parameter, const core::TrainingOptions& options);

/// Lines of the job's configuration, one for each of these options that is not as usual.
std::string describe_finalisation(const core::TrainingOptions& options);

}  // namespace troupe::actors
