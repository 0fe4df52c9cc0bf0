#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan/mesh.hpp"
#include "core/plan/placement.hpp"
#include "core/plan/terms.hpp"
#include "core/program/counts.hpp"
#include "core/program/lane_deal.hpp"
#include "core/program/passes.hpp"
#include "core/program/recipe.hpp"
#include "core/program/tensor_class.hpp"
#include "core/program/trainer_operation.hpp"
#include "core/program/trainer_point.hpp"
#include "core/program/unit.hpp"
#include "core/program/unit_order.hpp"

namespace troupe::core {

enum class TensorKind : std::uint8_t { parameters, gradients, verdict };
std::string_view name_of(TensorKind kind) noexcept;

/// A flat tensor of a unit; of the verdict there is one, with unit 0 and tensor 0.
struct TensorReference {
  TensorKind kind = TensorKind::verdict;
  int unit = 0;
  int tensor = 0;

  friend bool operator==(const TensorReference&, const TensorReference&) = default;
};
std::string describe(const TensorReference& tensor);

/// Memory of a fixed number of slots, each as large as the largest unit needs.
enum class Pool : std::uint8_t {
  parameters,  ///< full parameters of units on demand
  gradients,   ///< full gradients that are reduced in every round
};
inline constexpr std::size_t kPools = 2;
std::string_view name_of(Pool pool) noexcept;

/// A slot of a pool that is taken when one thing begins and given back when another has ended. An entry that
/// takes one gives it back at the end of `point`; one that gives back what the trainer took, at the begin of
/// `point`, does so when the entry has ended.
struct Credit {
  Pool pool = Pool::parameters;
  TrainerPoint point;

  friend bool operator==(const Credit&, const Credit&) = default;
};

/// What follows the verdict of a step, on every rank alike, before parameters are updated.
enum class Finish : std::uint8_t {
  check_finite,  ///< no gradient is NaN or Inf
  clip,          ///< gradients are scaled down to a norm
  check_large,   ///< their norm is not far above what was usual
};
std::string_view name_of(Finish finish) noexcept;

/// One collective. It brings a flat tensor from one list of placements to another along one axis of its
/// domain; the ranges on each rank are part_of() of the two lists. Or it is the sum over a group
/// beyond the axes (TensorClass::also_sum): then gradients stay where they are, and each member ends with the
/// sum of what all had there. In `ordered` numerics that is an all_gather, after which each adds in the order
/// of members; `elements` are then those of all members.
struct ProgramEntry {
  CollectiveKind operation = CollectiveKind::all_reduce;
  GroupKind group = GroupKind::world;
  TensorReference tensor;
  Placements from;  ///< empty for the verdict
  Placements to;
  /// Parameters in f8 go in microscaling blocks (core/mx_blocks.hpp).
  DType wire = DType::f32;
  /// Elements of the tensor where it is larger: what an all_gather brings, what the others start from. In an
  /// exchange (all_to_all), those of one subtree root.
  std::int64_t elements = 0;
  /// In an exchange of gradients a member puts in `elements` for each root it holds.
  Counts counts;
  /// In an exchange: it goes in parts of at most this many elements of each receiver's part; in an all_gather
  /// of gradients, of what each member has. 0: in one.
  std::int64_t chunk = 0;
  TrainerPoint ready;   ///< at its end the last input is complete
  TrainerPoint needed;  ///< it does not begin before the entry has ended
  int stream = 0;
  std::optional<Credit> takes;  ///< at launch
  std::optional<Credit> gives;  ///< when it has ended
  /// The operation divides what it sums by the number of members.
  bool averages = false;
  /// How it is carried out, as indices of Program::recipes: in the step's first round, and in later ones.
  int first = 0;
  int later = 0;

  friend bool operator==(const ProgramEntry&, const ProgramEntry&) = default;
};

/// The sum over a group beyond the data-parallel axes.
bool is_also_sum(const ProgramEntry& entry);
/// The members of such a sum number their units each in its own way.
bool spans_stages(const ProgramEntry& entry);
/// Parameters that go in microscaling blocks (TensorClass::gathered).
bool is_in_blocks(const ProgramEntry& entry);
/// The bytes of this many elements of the entry's tensor, as they are sent.
std::int64_t wire_bytes(const ProgramEntry& entry, std::int64_t elements);
/// For people: "all_gather of parameters 3.0", "sum over tp of gradients 3.0".
std::string describe(const ProgramEntry& entry);
/// The same entry for a unit further on.
ProgramEntry shifted(ProgramEntry entry, int units);

/// `entries`, then the same for the unit `unit_step` further on, `times` times in all.
struct ProgramRun {
  std::vector<ProgramEntry> entries;
  int times = 1;
  int unit_step = 0;
  int round = 0;  ///< in lists of passes: the round of the entries, the first time that their segment runs

  friend bool operator==(const ProgramRun&, const ProgramRun&) = default;
};

/// Entries in launch order, all of them `times` times.
struct ProgramSegment {
  int times = 1;
  std::vector<ProgramRun> runs;
  int round_step = 0;  ///< in lists of passes: each time of rounds this much further on

  friend bool operator==(const ProgramSegment&, const ProgramSegment&) = default;
};

/// `count` units that follow each other and are alike.
struct UnitRun {
  Unit unit;
  int count = 1;

  friend bool operator==(const UnitRun&, const UnitRun&) = default;
};

/// What one rank does in a step, for itself and with others: what is planned, printed, hashed, checked,
/// simulated and launched. A pure function of its inputs (plan_program.hpp).
struct Program {
  // What it is about.
  Numerics numerics = Numerics::fast;
  StrategyPlacements placements;
  std::vector<Domain> domains;
  std::vector<TensorClass> classes;
  std::vector<UnitRun> units;    ///< by their numbers
  UnitOrder order;               ///< in which a step uses them, as normalised() leaves it
  std::vector<int> coordinates;  ///< of the rank, in domain 0
  int lanes = 0;                 ///< of the job
  Pieces pieces;                 ///< as ProgramInputs::pieces
  int rounds = 0;                ///< of the rank: lanes it passes through
  std::vector<int> credits;      ///< slots of each pool
  std::int64_t verdict_elements = 0;
  std::int64_t optimizer_scratch_bytes = 0;
  int streams = 1;
  /// Nothing is ready before the end of the point that its entry names, on devices that run all in the order
  /// in which it is launched. Otherwise gradients may be ready as soon as the last of them is there.
  bool ready_at_points = false;
  std::vector<Recipe> recipes;  ///< of the entries
  std::vector<Finish> finish;

  // What it does: `body.times` rounds that are alike, the last round, and what follows it.
  ProgramSegment body;
  ProgramSegment last_round;
  ProgramSegment epilogue;
  // With a list of passes, in place of body and last round, which are empty.
  std::vector<PassRun> passes;
  std::vector<ProgramSegment> pass_segments;

  /// What the trainer does beside it, in every round, as far as it is declared.
  std::vector<OperationRun> operations;

  /// In step order. No segment repeats zero times.
  std::vector<const ProgramSegment*> segments() const;
  int unit_count() const;
  const Unit& unit(int index) const;
  StepClock clock() const {
    return passes.empty() ? StepClock(unit_count(), rounds, order)
                          : StepClock(unit_count(), rounds, unfold(passes));
  }

  friend bool operator==(const Program&, const Program&) = default;
};

/// Entries as they are stored, runs counted once; and the memory that a program takes.
std::int64_t stored_entries(const Program& program);
std::int64_t stored_bytes(const Program& program);

/// The placements of a unit's tensors: those of the program, but for the parameters of resident units.
StrategyPlacements placements_in(const StrategyPlacements& table, const Unit& unit);
StrategyPlacements placements_in(const Program& program, const Unit& unit);

}  // namespace troupe::core
