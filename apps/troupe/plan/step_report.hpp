#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "apps/troupe/plan/parameters.hpp"
#include "core/plan/mesh.hpp"
#include "core/plan/plan.hpp"
#include "core/result.hpp"

namespace troupe::apps {

struct StepArguments {
  std::string strategy = "zero1";
  std::string numerics = "fast";
  int lanes = 0;  ///< 0: one for each rank of the dp_cp group
  core::MeshSizes mesh;
  std::string order = std::string(core::Mesh::kDefaultOrder);
  ParameterArguments parameters;
  std::vector<std::size_t> experts;  ///< indices of expert parameters
  std::optional<std::int64_t> bucket_size;
  bool high_bus_bandwidth = false;
  std::string dtype = "f32";
  std::string gradient_dtype = "f32";
  bool json = false;
};

/// The plan that `troupe plan step` prints.
core::Result<core::Plan> plan_of(const StepArguments& arguments);
/// What `troupe plan step` prints.
core::Result<std::string> report_step(const StepArguments& arguments);

}  // namespace troupe::apps
