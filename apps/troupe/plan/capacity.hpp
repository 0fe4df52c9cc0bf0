#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/troupe/plan/axis_traffic.hpp"
#include "apps/troupe/plan/program_inputs.hpp"
#include "core/models/activations.hpp"
#include "core/program/memory.hpp"
#include "core/program/step_time.hpp"
#include "core/result.hpp"

namespace troupe::apps {

struct CapacityArguments {
  ProgramArguments program;             ///< its strategy is not looked at
  std::string mesh;                     ///< "2x4": ranks of the outer and of the inner axis; or "8"
  std::string model;                    ///< config.json or its directory; empty: units as `program` has them
  std::vector<std::string> strategies;  ///< on the mesh; none or "all": see capacity_plan()
  std::int64_t sequences = 1;           ///< of a microbatch
  std::int64_t length = 0;              ///< of a sequence; 0: what the model knows, at most 4096
  bool recompute = false;
  bool keep_probabilities = false;
  std::string device_memory = "80GiB";
  std::vector<std::string> links;
  std::optional<int> node_ranks;  ///< none: what shares the inner axis where there are two, otherwise 8
  double compute_ms = 0;          ///< forward and backward of a unit in a round; 0: not known
  std::string html;               ///< where the page goes; empty: nowhere
};

/// What a strategy takes of the rank that needs most, and what that rank sends in a step.
struct Capacity {
  std::string strategy;
  int ranks = 1;
  int outer = 1;
  int stage = 0;  ///< of that rank
  core::ProgramMemory memory;
  std::int64_t activations = 0;
  core::StepTime time;
  std::vector<AxisTraffic> traffic;
  bool fits = false;

  std::int64_t total() const { return memory.total() + activations; }
  std::int64_t sent_bytes() const;
  double communication_seconds() const;
  double exposed_seconds() const;  ///< the traffic is in the way of computation
  double step_seconds() const;
  std::string mesh() const;  ///< "8", or "2x4"
};

/// A stage of the model that may need most: the first one or the last.
struct CapacityStage {
  int stage = 0;
  core::StageTensors tensors;
  core::ActivationBytes activations;
};

struct CapacityPlan {
  CapacityArguments arguments;  ///< with the mesh's numbers, and the length that was taken
  std::string model;            ///< for people; empty: equal units
  std::int64_t elements = 0;
  std::int64_t units = 0;
  std::vector<CapacityStage> stages;  ///< of a model, but those that need no more than another
  core::MicrobatchShape microbatch;   ///< as above
  core::Links links;                  ///< of all ranks
  std::int64_t device_bytes = 0;
  std::vector<Capacity> found;
  std::optional<std::size_t> chosen;  ///< of those that fit

  bool knows_compute() const { return arguments.compute_ms > 0; }
};

/// Without strategies by name, those of one axis take all ranks as one, and with two axes hsdp and hfsdp are
/// there, too. Among those that fit, the one is chosen that communicates for the shortest time, or with
/// `compute_ms` exposes the least of it; among equals, the one that takes less memory. Errc::invalid_argument
/// names the option that cannot be.
core::Result<CapacityPlan> capacity_plan(CapacityArguments arguments);

}  // namespace troupe::apps
