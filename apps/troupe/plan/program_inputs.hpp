#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/models/model_config.hpp"
#include "core/models/rank_tensors.hpp"
#include "core/models/unit_tensors.hpp"
#include "core/program/plan_program.hpp"
#include "core/result.hpp"
#include "core/schedule/pipeline_schedule.hpp"

namespace troupe::apps {

/// A model that was read from a config.json.
struct PlannedModel {
  core::ModelConfig config;
  std::vector<core::UnitTensor> tensors;

  std::int64_t elements() const;
};

/// From a config.json or its directory. The Error names the file, and what of it cannot be read.
core::Result<PlannedModel> read_planned_model(const std::string& path);

/// A job as a command line describes it: units of equal size, and what lies outside of them.
struct ProgramArguments {
  std::string strategy = "zero3";
  std::string numerics = "ordered";
  int ranks = 8;
  int outer = 1;             ///< length of the outer data-parallel axis
  int rounds = 1;            ///< microbatches of each rank
  int context_parallel = 1;  ///< of the ranks, this many share each lane
  int context_pieces = 0;    ///< of each lane, of which a rank may have several; 0: context_parallel
  int stages = 1;            ///< of a pipeline, of one of which the ranks and units are
  int stage = 0;
  std::string schedule = "1f1b";
  int chunks = 1;
  int units = 12;
  std::vector<int> forward_order;   ///< units as forward uses them; empty: from 0 up
  std::vector<int> backward_order;  ///< empty: forward from its end
  std::int64_t unit_elements = std::int64_t{1} << 20;
  std::int64_t resident_elements = 0;
  std::string dtype = "bf16";
  std::string gather_dtype;  ///< empty: `dtype`; of a model, of the matrices of its layers
  std::string gradient_dtype = "f32";
  std::string wire_dtype = "f32";
  std::string main_dtype = "f32";
  std::string optimizer = "adamw";
  int parameter_credits = 2;
  int gradient_credits = 2;
  std::int64_t staging_elements = std::int64_t{1} << 24;
  bool no_overlap = false;
  bool json = false;

  // For a model; `ranks` counts those of one part of it:
  int tensor_parallel = 1;
  bool sequence_parallel = false;
  int tensor_slices = 0;  ///< of each layer, on the host; 0: tensor_parallel
  int expert_parallel = 1;
  int expert_tensor_parallel = 0;  ///< 0: tensor_parallel

  int lanes() const { return ranks / context_parallel * rounds; }
  int pieces_of_lane() const { return context_pieces == 0 ? context_parallel : context_pieces; }
  int own_pieces() const { return pieces_of_lane() / context_parallel; }
  core::ModelAxes axes() const {
    return {tensor_parallel, sequence_parallel, expert_parallel, expert_tensor_parallel, stages, chunks};
  }
};

/// The schedule of a pipeline's stages.
core::Result<core::PipelineSchedule> schedule_of(const ProgramArguments& arguments);

/// Units are padded to what their strategy's shards need. Errc::invalid_argument names what cannot be.
core::Result<core::ProgramInputs> program_inputs(const ProgramArguments& arguments);

/// The same for the tensors of a model's stage, laid out as a session would lay them out; `units`,
/// `unit_elements` and `resident_elements` are not looked at.
core::Result<core::ProgramInputs> program_inputs(const ProgramArguments& arguments,
                                                 const core::StageTensors& tensors);

}  // namespace troupe::apps
