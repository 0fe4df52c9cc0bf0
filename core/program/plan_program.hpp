#pragma once

#include <cstdint>
#include <vector>

#include "core/list.hpp"
#include "core/plan/lanes.hpp"
#include "core/plan/mesh.hpp"
#include "core/program/lane_deal.hpp"
#include "core/program/program.hpp"

namespace troupe::core {

/// What the program of a step follows from: the same on all ranks of a pipeline stage.
struct ProgramInputs {
  StrategyPlacements placements;
  std::vector<Domain> domains;  ///< the first one deals the lanes
  std::vector<TensorClass> classes;
  List<int, Unit> units;
  /// In which a step uses the units; all ranks that gather or reduce together have the same. Not with a list
  /// of passes, whose units come by their numbers.
  UnitOrder order;
  /// What the rank does in its rounds, where that is not forward and backward of all units, one round after
  /// another: the list of a pipeline stage. All ranks that gather or reduce together have the same.
  std::vector<UnitPass> passes;
  /// Collectives that the trainer says it will post itself, in the order of each point. The same on all ranks
  /// of their groups.
  std::vector<TrainerOperation> operations;
  WorldSize world{1};  ///< ranks of the job, all of which share the verdict
  Numerics numerics = Numerics::ordered;
  int lanes = 0;  ///< of the job
  /// The ranks that share a lane are neighbours on the innermost axis (context parallelism).
  Pieces pieces;
  /// The trainer has collectives of its own on devices that run all in the order in which they are launched:
  /// nothing may be ready before the end of the point that says so (Program::ready_at_points).
  bool ready_at_points = false;
  bool overlap = true;        ///< communication runs beside forward and backward; otherwise between them
  int parameter_credits = 2;  ///< units on demand that may be gathered at once; 1 without overlap
  int gradient_credits = 2;   ///< full gradients that may exist where each round reduces them; as above
  /// Elements that a rank may receive at once in an exchange, from all others together; it goes in as many
  /// chunks as that takes. 0: all at once.
  std::int64_t staging_elements = 0;
  bool average_in_collective = false;        ///< TrainingOptions::average_in_collective
  std::int64_t verdict_elements = 1;         ///< i64 words
  std::vector<Finish> finish;                ///< what the verdict is asked, in this order
  std::int64_t optimizer_scratch_bytes = 0;  ///< that one step of the optimizer takes between its kernels
  bool separate_streams = true;              ///< gathers have one of their own

  friend bool operator==(const ProgramInputs&, const ProgramInputs&) = default;
};

/// The inputs of a strategy on a mesh: its placements, and the dense domain with that of experts after it,
/// each over as many axes as the placements. The outer axis is as long as
/// mesh.sizes().optimizer_instances says, which must be 1 for strategies of one axis that cannot have copies.
/// Lanes are cut in mesh.sizes().cp pieces, one for each rank, and there is one lane for the ranks of each.
Result<ProgramInputs> inputs_of(Strategy strategy, const Mesh& mesh);

/// The deal of lanes to the ranks of domain 0. Errors as LaneDeal::create().
Result<LaneDeal> deal_of(const ProgramInputs& inputs);

/// Rounds of the rank at `coordinates` of domain 0: as many as of any rank that it gathers or reduces with in
/// each of them. Errc::invalid_argument as LaneDeal::create().
Result<int> rounds_of(const ProgramInputs& inputs, const std::vector<int>& coordinates);

/// The program of the rank at `coordinates` of domain 0. What moves follows from placements alone:
///
/// - in each round, parameters of units on demand from where they rest to R before forward and before
///   backward, and gradients from P to where they lie between microbatches, after backward;
/// - in the last round, gradients from there to where the optimizer steps them; those of a class that is also
///   summed over another group, there, once all lanes are in them;
/// - the verdict;
/// - updated parameters from where the optimizer steps them to where they rest, in the order of forward.
///
/// `ordered` numerics turn P->F into an exchange of the roots of the tree over lanes, which the receiver
/// adds, and P->R into an exchange and an all_gather. Gradients are f32 then. A class whose wire is narrower
/// rounds each lane's gradient to it once, when its backward ends, on any number of ranks; entries that carry
/// single lanes use it, and entries that carry sums of lanes are f32. So bits do not depend on the mesh. In
/// `fast` numerics each rank's sum is rounded to a narrower wire whenever it is sent, P->F is an exchange
/// that its receiver sums in the gradients' dtype, and P->R that and an all_gather of the sum, rounded once
/// more; bits depend on the mesh.
///
/// Forward, backward and updates go through units in `order`, and so do gathers and reductions, and slots of
/// pools come in turn by it. Bits do not depend on it: what is summed is summed unit by unit.
///
/// A rank computes gradients of its experts for all ranks of its expert-parallel group, its sources.
/// `ordered` numerics keep those of each source's lanes apart, which are neighbours: dealt by round, in each
/// round, otherwise all together (domain_lanes.hpp). So what their owner puts in are subtree roots as of any
/// rank.
///
/// Every pass of a list is a sweep of its own: it gathers the units it goes through, none of them
/// before the pass before it has ended, and the one that adds to gradients hands them over. A slot of
/// gradients is taken until its next user in any pass comes. The last round's reductions are those of the
/// last round of each unit.
///
/// The trainer's own operations move nothing of the program: they are there for the check
/// (check_programs.hpp), and for ranks to compare. Their groups are tp, cp and ep, whose members have lanes
/// in the same rounds.
///
/// Errc::invalid_argument for what does not fit together, Errc::unavailable for inner axes, or groups of
/// experts, that hold other subtrees in other rounds in `ordered` numerics.
Result<Program> plan_program(const ProgramInputs& inputs, const std::vector<int>& coordinates);

}  // namespace troupe::core
