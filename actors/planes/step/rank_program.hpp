#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "actors/planes/step/training_plan.hpp"
#include "core/ids.hpp"
#include "core/list.hpp"
#include "core/program/domain_lanes.hpp"
#include "core/program/lane_deal.hpp"
#include "core/program/program.hpp"
#include "core/program/program_text.hpp"
#include "core/program/trainer_point.hpp"

namespace troupe::actors {

/// One of a rank's sums of gradients: what is kept here, full gradients, or sums that are carried.
struct KeptSum {
  core::Place place = core::Place::sums;
  int slot = 0;
};

/// Terms with numbers in a row.
struct TermRun {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// One of the sums that a reduction leaves.
struct RootSum {
  /// What it is the sum of, in the order of the tree: numbers of what was kept here before, then of what
  /// arrived.
  std::vector<TermRun> terms;
  std::vector<core::TreeStep> steps;  ///< over places among the terms
  KeptSum kept;                       ///< where it goes
};

/// How a member of an exchange sends its sums.
enum class Sending : std::uint8_t { nothing, as_it_is, packed };

/// A collective of a rank's program, at its place in the step.
struct PlannedLaunch {
  const core::LaunchedEntry* entry = nullptr;  ///< owned by the RankProgram
  int round = 0;
  int slot = -1;  ///< in the pool that holds the full tensor; -1: it has its own memory
  std::optional<core::BucketIndex> bucket;  ///< none: the verdict
  std::size_t axis = 0;                     ///< in the domain: the one along which it moves the bucket, if
                                            ///< any
  int place = 0;                            ///< of this rank among the members of its group
  std::int64_t ready = 0;                   ///< by the program's clock: ready at the end of this point
  std::int64_t needed = 0;                  ///< needed before this one begins
  bool last_reduction = false;              ///< no later one in the step brings other lanes
  bool completes = false;                   ///< no later one in the step adds to the bucket's gradients
  // What its recipe says, in this rank's numbers:
  int recipe = 0;             ///< of the program's
  core::ElementRange from;    ///< of the bucket's buffer: what this rank holds before
  core::ElementRange to;      ///< and afterwards
  std::int64_t chunks = 0;    ///< times that it does what is done for each
  std::vector<KeptSum> held;  ///< this rank's sums that it starts from
  std::vector<int> rested;    ///< slots of sums of earlier rounds, which what it brings is added to
  /// That it leaves; shared by all launches that add alike, because each is as long as the group.
  std::shared_ptr<const std::vector<RootSum>> sums;
  std::vector<int> cleared;  ///< slots of full gradients that are zeros afterwards
  Sending sending = Sending::nothing;
  std::size_t arriving = 0;  ///< sums of all members, in an exchange
  /// Members before and after this one, where there are any: first and end.
  std::vector<std::pair<std::size_t, std::size_t>> others;

  bool is_verdict() const { return !bucket.has_value(); }
  bool moves_gradients() const { return entry->tensor.kind == core::TensorKind::gradients; }
  /// Moves what the optimizer has stepped; other launches that move parameters bring the full ones of a unit
  /// on demand.
  bool publishes() const { return entry->ready.phase == core::Phase::update; }
};

/// For people: "reduce_scatter of bucket 3".
std::string describe(const PlannedLaunch& launch);

/// The program of a rank as the planner makes it.
core::Program program_of(const TrainingPlan& plan, core::Rank rank);

/// What one rank does in a step, with its launches written out: PlanEntryIndex is a place among them. They
/// are numbered in the order in which the session's first program launches them.
class RankProgram {
 public:
  /// `plan` must outlive it.
  RankProgram(const TrainingPlan& plan, core::Rank rank);
  /// The same with a program that is not the planner's.
  RankProgram(const TrainingPlan& plan, core::Rank rank, core::Program program);

  core::Rank rank() const { return rank_; }
  const std::vector<int>& coordinates() const { return program_.coordinates; }
  const core::Program& program() const { return program_; }
  const core::List<core::PlanEntryIndex, PlannedLaunch>& launches() const { return launches_; }
  const PlannedLaunch& launch(core::PlanEntryIndex entry) const { return launches_[entry]; }
  /// All of them, in the order of launch.
  const std::vector<core::PlanEntryIndex>& sequence() const { return sequence_; }
  /// How many launches of the sequence are ready when the trainer has passed this point, by the program's
  /// clock.
  std::size_t ready_by(std::int64_t passed) const;
  const core::Recipe& recipe(const PlannedLaunch& launch) const {
    return program_.recipes[static_cast<std::size_t>(launch.recipe)];
  }
  /// Those that bring what the optimizer has stepped, or what was loaded, to all that keep it.
  const std::vector<core::PlanEntryIndex>& publishing() const { return publishing_; }
  /// Those that bring the full parameters of some buckets of a unit on demand for the forward of round 0.
  std::vector<core::PlanEntryIndex> bringing(const std::vector<core::BucketIndex>& buckets) const;
  /// The bucket's launches, in ascending order.
  const std::vector<core::PlanEntryIndex>& launches_of(core::BucketIndex bucket) const {
    return by_bucket_[bucket];
  }
  std::size_t place_in_sequence(core::PlanEntryIndex entry) const { return places_[entry]; }
  /// Follows the plan's present order of units, which changes when launches come and the slots they use, but
  /// neither what they bring nor their numbers. Before the first step.
  void follow_order();
  const core::LaneDeal& deal() const { return deal_; }
  core::StepClock clock() const { return program_.clock(); }

  /// The lane of each round; none for a rank that has fewer lanes than others in its groups.
  const core::List<int, std::optional<core::Lane>>& rounds() const { return rounds_; }
  std::vector<core::Lane> lanes() const;
  int round_of(core::Lane lane) const;
  /// The lane of a round; for a round without one, which comes after all others, a number after all lanes.
  core::Lane lane_or_end(int round) const;
  /// Gradients are reduced in every round; otherwise lanes are summed first.
  bool reduces_each_round() const { return deal_.partial_axes() < coordinates().size(); }
  /// The lanes as the bucket's domain sees them.
  const core::DomainLanes& lanes_of(core::BucketIndex bucket) const {
    return lanes_[plan_->domain_of(bucket)];
  }
  /// Ranks whose lanes' gradients of the bucket this rank computes: itself, or for experts those of its
  /// expert-parallel group.
  int sources(core::BucketIndex bucket) const { return lanes_of(bucket).sources; }
  /// Where the partial sums of the sources are in `ordered` numerics, in this round or at its end.
  const core::SourceStacks& stacks(core::BucketIndex bucket, int round) const {
    return stacks_[plan_->domain_of(bucket)][static_cast<std::size_t>(round)];
  }
  /// Slots that hold something when a bucket's lanes are summed, in the order of the lanes: of the partial
  /// sums, or of a round's full gradients. The first is slot 0.
  std::vector<int> summed_slots(core::BucketIndex bucket, int round) const;
  /// The slot of these stacks that a lane's gradient is computed into, in a round of all sources.
  int source_slot(core::BucketIndex bucket, int round, int source) const;
  /// Leaves of the tree whose sums a member of the launch's group contributes.
  const core::PieceTree& tree() const { return deal_.tree(); }
  /// Leaves of the tree whose sums a member of the launch's group puts in.
  std::vector<core::LaneRange> leaves_of(const PlannedLaunch& launch, int member) const;
  /// If each round reduces gradients: the leaves whose sums are kept here from earlier rounds.
  std::vector<core::LaneRange> before(core::BucketIndex bucket, int round) const;
  /// Where those sums are.
  const core::RestingStacks& resting(core::BucketIndex bucket) const {
    return resting_[plan_->domain_of(bucket)];
  }

  /// Gradients of the bucket are also summed over a group beyond the data-parallel axes.
  bool also_sum(core::BucketIndex bucket) const;

  /// Where the full gradients of a bucket are, if each round reduces them: the slot of its unit in the pool,
  /// the same in every round; -1: they have memory of their own.
  int gradient_slot(core::BucketIndex bucket) const { return gradient_slots_[bucket]; }

  core::ElementRange held(const core::Placements& placements, core::BucketIndex bucket) const {
    return plan_->held(placements, bucket, coordinates());
  }

 private:
  void write_out();
  /// Like leaves_of(), of the member at these coordinates.
  std::vector<core::LaneRange> leaves_at(const PlannedLaunch& launch, const std::vector<int>& at) const;
  void set_sequence(std::vector<core::PlanEntryIndex> sequence);
  // In recipe_numbers.cpp: what recipes say, in this rank's numbers.
  using Sums = std::shared_ptr<const std::vector<RootSum>>;
  /// What launches that add alike agree in.
  using Adding = std::tuple<core::Action, std::size_t, std::size_t, int, std::int64_t, bool>;
  using KnownSums = std::map<Adding, Sums>;
  void number(PlannedLaunch& launch, KnownSums& known) const;
  void number(const core::RecipeStep& step, PlannedLaunch& launch, KnownSums& known) const;
  Sums sums_of(core::Action action, const PlannedLaunch& launch, KnownSums& known) const;
  std::vector<KeptSum> sums_held(const PlannedLaunch& launch) const;
  std::vector<RootSum> sums_left(const PlannedLaunch& launch) const;
  std::vector<int> slots_rested(const PlannedLaunch& launch) const;
  bool rests(const PlannedLaunch& launch) const;
  bool is_ordered() const { return plan_->options.numerics == core::Numerics::ordered; }
  /// This rank's place among the members of the launch's group; also finds the axis.
  int place_in(PlannedLaunch& launch) const;

  const TrainingPlan* plan_;
  core::Rank rank_;
  core::LaneDeal deal_;
  core::Program program_;
  std::vector<core::DomainLanes> lanes_;                 ///< of domains that have parameters
  std::vector<std::vector<core::SourceStacks>> stacks_;  ///< of these domains, in each round
  std::vector<core::RestingStacks> resting_;
  core::List<int, std::optional<core::Lane>> rounds_;
  core::LaunchedEntries entries_;  ///< of launches
  core::List<core::PlanEntryIndex, PlannedLaunch> launches_;
  std::vector<core::PlanEntryIndex> sequence_;
  core::List<core::PlanEntryIndex, std::size_t> places_;  ///< by entry, in the sequence
  core::List<core::BucketIndex, std::vector<core::PlanEntryIndex>> by_bucket_;
  core::List<core::BucketIndex, int> gradient_slots_;  ///< by bucket
  std::vector<core::PlanEntryIndex> publishing_;
};

}  // namespace troupe::actors
