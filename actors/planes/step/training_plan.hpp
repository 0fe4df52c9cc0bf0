#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "core/ids.hpp"
#include "core/list.hpp"
#include "core/optimizer/parameter_groups.hpp"
#include "core/options/options.hpp"
#include "core/plan/mesh.hpp"
#include "core/plan/placement.hpp"
#include "core/program/job_programs.hpp"
#include "core/program/plan_program.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// All parameters of one dtype whose optimizers keep the same states and need the same layout, end to end.
/// Ranges of parameters and buckets are elements of their buffer.
struct TrainingBuffer {
  core::DType dtype = core::DType::f32;
  core::DType gradient_dtype = core::DType::f32;
  std::vector<core::ParameterIndex> parameters;  ///< in registration order
  std::int64_t elements = 0;                     ///< with padding
  std::span<const std::string_view> states;      ///< names of what the optimizer keeps of each element
  bool whole_matrices = false;                   ///< of optimizers that step nothing else
  bool trainable = true;                    ///< otherwise frozen: without gradients, states and main values
  std::size_t domain = 0;                   ///< of the program: 1 for distributed experts
  std::optional<core::GroupKind> also_sum;  ///< gradients are summed over it, too
  std::optional<core::DType> gathered;      ///< ParameterSpec::gather_dtype of all of them
};

/// Where a parameter lies.
struct TrainingParameter {
  core::BufferIndex buffer{};
  core::BucketIndex bucket{};  ///< of the job
  core::ElementRange range;    ///< of the buffer
};

/// What is gathered, reduced and stepped together: a flat tensor of a unit of the program.
struct TrainingBucket {
  core::BufferIndex buffer{};
  core::ElementRange range;  ///< of the buffer
  std::vector<core::ParameterIndex> parameters;
  int unit = 0;    ///< of the program
  int tensor = 0;  ///< of the unit
};

/// Everything that follows from the parameters, the options and the number of ranks: the same on all ranks
/// that keep the same part of the model.
struct TrainingPlan {
  core::TrainingOptions options;
  core::WorldSize world{1};
  core::List<core::ParameterIndex, core::ParameterSpec> specs;
  std::vector<core::GroupSettings> groups;  ///< that ParameterSpec::group is an index of
  core::List<core::ParameterIndex, TrainingParameter> parameters;
  core::List<core::BufferIndex, TrainingBuffer> buffers;
  /// In the order in which backward by numbers completes them.
  core::List<core::BucketIndex, TrainingBucket> buckets;
  core::Mesh mesh;
  core::ProgramInputs inputs;  ///< of every rank's program
  /// Units of the program that are resident and come before those that the trainer declared; without declared
  /// units, and where nothing but the optimizer is sharded, all are resident and stand for a bucket each.
  int resident_units = 0;
  std::string configuration;  ///< one line per setting
  /// Owned together by all ranks of this process; null: there is one.
  std::shared_ptr<core::KnownPrograms> programs;

  const core::Domain& domain() const { return inputs.domains[0]; }
  std::size_t domain_of(core::BucketIndex bucket) const { return buffers[buckets[bucket].buffer].domain; }
  const core::GroupSettings& group_of(core::ParameterIndex parameter) const {
    return groups[specs[parameter].group];
  }
  /// Ranks that play lanes, or pieces of lanes, of their own with the same part of the model, but for
  /// experts.
  int data_parallel() const { return mesh.group_size(core::GroupKind::dp_cp); }
  /// Whether all ranks keep the same part of it.
  bool is_data_parallel_alone() const {
    return data_parallel() == world.value && options.expert_ranks() == 1;
  }
  /// Errors are those of core::plan_program().
  core::Result<core::Program> program(core::Rank rank) const {
    return programs ? programs->plan(inputs, coordinates(rank))
                    : core::plan_program(inputs, coordinates(rank));
  }
  /// The rank's coordinates in domain 0.
  std::vector<int> coordinates(core::Rank rank) const;
  /// The first of the ranks that keep the same parameters of the bucket as this one.
  core::Rank first_alike(core::BucketIndex bucket, core::Rank rank) const;
  /// Ranks with the same number register the same parameters: those of a pipeline stage and, where experts
  /// are distributed over ranks, of the same experts.
  int part_of_model(core::Rank rank) const;
  /// Which of the groups of the ranks that share a layer it is in, of which each has experts of its own.
  int expert_column(core::Rank rank) const;
  /// The first rank with this one's part_of_model().
  core::Rank first_of_part(core::Rank rank) const;
  /// From 0, in the order of forward.
  int pipeline_stage(core::Rank rank) const;
  /// What a gradient is multiplied by, once everything is summed.
  float averaging_factor() const {
    return options.average ? 1.0F / static_cast<float>(options.lanes * options.microbatches) : 1.0F;
  }
  /// When several ranks hold the same values of a parameter, only one of them counts it in norms.
  bool counts_in_norms(core::ParameterIndex parameter, core::Rank rank) const;
  /// When several ranks compute the same loss, only one of them counts it.
  bool counts_losses(core::Rank rank) const;
  const core::Unit& unit_of(core::BucketIndex bucket) const;
  bool is_trainable(core::BucketIndex bucket) const { return buffers[buckets[bucket].buffer].trainable; }
  /// Those of the bucket's unit: as the table has them, but for parameters of resident units. Each
  /// rank saves what it holds of frozen parameters, and of all others what its optimizer steps.
  core::StrategyPlacements placements_of(core::BucketIndex bucket) const;
  /// The stretch of a bucket, as a range of its buffer, that a rank holds in a role, or by `placements`.
  core::ElementRange held(core::TensorRole role, core::BucketIndex bucket, core::Rank rank) const;
  /// `coordinates` are those in domain 0.
  core::ElementRange held(const core::Placements& placements, core::BucketIndex bucket,
                          const std::vector<int>& coordinates) const;
  /// No rank keeps all values of the bucket's parameters from step to step.
  bool has_sharded_parameters(core::BucketIndex bucket) const;
  /// All ranks keep the same of the optimizer.
  bool optimizer_is_replicated() const;
};

/// Errc::invalid_argument says which option or parameter cannot be, and what could. `passes` are
/// SessionOptions::passes of the pipeline stage whose specs these are, `order` and `operations` are those of
/// SessionOptions; `programs` are TrainingPlan::programs.
core::Result<TrainingPlan> plan_training(std::vector<core::ParameterSpec> specs,
                                         core::TrainingOptions options, core::WorldSize world,
                                         std::vector<core::UnitPass> passes = {},
                                         const core::DeclaredOrder& order = {},
                                         const std::vector<core::DeclaredOperation>& operations = {},
                                         std::shared_ptr<core::KnownPrograms> programs = nullptr);

}  // namespace troupe::actors
