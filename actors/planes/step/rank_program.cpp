#include "actors/planes/step/rank_program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include "core/errors.hpp"
#include "core/indices.hpp"
#include "core/program/launch_cursor.hpp"

namespace troupe::actors {

namespace {

core::LaneDeal deal_of(const TrainingPlan& plan) {
  auto deal = core::deal_of(plan.inputs);
  CHECK(deal.has_value(), "plan_training() has dealt the lanes before");
  return *std::move(deal);
}

}  // namespace

core::Program program_of(const TrainingPlan& plan, core::Rank rank) {
  auto program = plan.program(rank);
  CHECK(program.has_value(), "plan_training() has planned the program of a rank before");
  return *std::move(program);
}

std::string describe(const PlannedLaunch& launch) {
  const auto operation = core::name_of(launch.entry->operation);
  if (launch.is_verdict()) return fmt::format("{} of the verdict", operation);
  if (core::is_also_sum(*launch.entry)) {
    return fmt::format("sum over {} of bucket {}", core::name_of(launch.entry->group), launch.bucket->value);
  }
  return fmt::format("{} of bucket {}", operation, launch.bucket->value);
}

RankProgram::RankProgram(const TrainingPlan& plan, core::Rank rank)
    : RankProgram(plan, rank, program_of(plan, rank)) {}

RankProgram::RankProgram(const TrainingPlan& plan, core::Rank rank, core::Program program)
    : plan_(&plan),
      rank_(rank),
      deal_(deal_of(plan)),
      program_(std::move(program)),
      rounds_(static_cast<std::size_t>(program_.rounds)) {
  const auto dealt = deal_.dealt(coordinates());
  for (int round = 0; round < dealt.count; ++round) {
    rounds_[round] = core::Lane{dealt.first + round * dealt.stride};
  }
  const bool spread = plan.options.expert_ranks() > 1;
  for (std::size_t domain = 0; domain < (spread ? 2 : 1); ++domain) {
    auto lanes = core::lanes_of(domain, plan.inputs.domains, plan.inputs.placements.gradients,
                                plan.inputs.lanes, coordinates(), plan.inputs.pieces);
    CHECK(lanes.has_value(), "plan_training() has dealt the lanes before");
    lanes_.push_back(*std::move(lanes));
    auto& stacks = stacks_.emplace_back();
    for (int round = 0; round < program_.rounds; ++round)
      stacks.push_back(core::source_stacks(lanes_.back(), round));
    resting_.push_back(core::resting_stacks(lanes_.back(), program_.rounds));
  }
  write_out();
}

void RankProgram::write_out() {
  std::vector<std::vector<core::BucketIndex>> buckets(plan_->inputs.units.size());
  for (std::size_t unit = 0; unit < buckets.size(); ++unit) {
    buckets[unit].resize(plan_->inputs.units[unit].tensors.size());
  }
  for (const auto bucket : plan_->buckets.indices()) {
    const auto& place = plan_->buckets[bucket];
    buckets[place.unit][static_cast<std::size_t>(place.tensor)] = bucket;
  }
  const auto clock = program_.clock();
  std::vector<PlannedLaunch*> last(plan_->buckets.size());
  entries_ = plan_->programs ? plan_->programs->entries(program_) : core::entries_of(program_);
  launches_.reserve(entries_->size());
  core::for_each_launch(program_, [&](const core::Launch& launch) {
    const auto& entry = (*entries_)[launches_.size()];
    PlannedLaunch planned{.entry = &entry, .round = launch.round, .slot = launch.slot};
    planned.ready = clock.at(entry.ready, launch.round);
    planned.needed = clock.at(entry.needed, launch.round);
    if (entry.tensor.kind != core::TensorKind::verdict) {
      planned.bucket = buckets[entry.tensor.unit][static_cast<std::size_t>(entry.tensor.tensor)];
      planned.place = place_in(planned);
    }
    launches_.push_back(std::move(planned));
  });
  for (auto& launch : launches_) {
    if (!launch.moves_gradients()) continue;
    if (core::is_also_sum(*launch.entry)) {
      launch.completes = true;
    } else if (launch.entry->operation != core::CollectiveKind::all_gather) {
      last[launch.bucket->value] = &launch;
    }
  }
  for (auto* launch : last) {
    if (launch == nullptr) continue;  // frozen parameters have none
    launch->last_reduction = true;
    launch->completes = !also_sum(*launch->bucket);
  }
  gradient_slots_.assign(plan_->buckets.size(), -1);
  for (const auto& launch : launches_) {
    if (launch.moves_gradients() && launch.slot >= 0) gradient_slots_[*launch.bucket] = launch.slot;
  }
  KnownSums known;
  for (auto& launch : launches_) number(launch, known);
  std::vector<core::PlanEntryIndex> sequence;
  for (const auto entry : launches_.indices()) sequence.push_back(entry);
  set_sequence(std::move(sequence));
}

void RankProgram::set_sequence(std::vector<core::PlanEntryIndex> sequence) {
  sequence_ = std::move(sequence);
  places_.resize(sequence_.size());
  for (std::size_t place = 0; place < sequence_.size(); ++place) {
    places_[sequence_[place]] = place;
  }
  CHECK(std::is_sorted(sequence_.begin(), sequence_.end(),
                       [&](auto a, auto b) { return launch(a).ready < launch(b).ready; }),
        "launches come in the order in which they become ready");
  by_bucket_.assign(plan_->buckets.size(), {});
  publishing_.clear();
  for (const auto entry : launches_.indices()) {
    const auto bucket = launch(entry).bucket;
    if (!bucket) continue;
    by_bucket_[*bucket].push_back(entry);
    if (launch(entry).publishes()) publishing_.push_back(entry);
  }
}

std::vector<core::PlanEntryIndex> RankProgram::bringing(const std::vector<core::BucketIndex>& buckets) const {
  std::vector<core::PlanEntryIndex> found;
  for (const auto bucket : buckets) {
    for (const auto entry : launches_of(bucket)) {
      const auto& one = launch(entry);
      const bool brings = !one.moves_gradients() && !one.publishes();
      if (brings && one.round == 0 && one.entry->needed.phase == core::Phase::forward) found.push_back(entry);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::size_t RankProgram::ready_by(std::int64_t passed) const {
  const auto end = std::partition_point(sequence_.begin(), sequence_.end(),
                                        [&](auto entry) { return launch(entry).ready <= passed; });
  return static_cast<std::size_t>(end - sequence_.begin());
}

void RankProgram::follow_order() {
  RankProgram ordered(*plan_, rank_);
  // Within a phase of a round a bucket's launches keep their order, wherever its unit comes. Gradients have
  // no phase here: they are needed by the next unit that uses their memory.
  using Use = std::tuple<std::optional<core::BucketIndex>, int, std::optional<core::Phase>>;
  const auto use_of = [](const PlannedLaunch& launch) -> Use {
    const auto phase = launch.moves_gradients() ? std::nullopt : std::optional(launch.entry->needed.phase);
    return {launch.bucket, launch.round, phase};
  };
  std::map<Use, std::deque<core::PlanEntryIndex>> numbers;
  for (const auto entry : sequence_) numbers[use_of(launch(entry))].push_back(entry);
  std::vector<core::PlanEntryIndex> sequence;
  core::List<core::PlanEntryIndex, PlannedLaunch> renumbered(launches_.size());
  for (auto& launch : ordered.launches_) {
    auto& same_use = numbers[use_of(launch)];
    CHECK(!same_use.empty(), "another order of units has the same launches");
    sequence.push_back(same_use.front());
    renumbered[same_use.front()] = std::move(launch);
    same_use.pop_front();
  }
  CHECK(sequence.size() == sequence_.size(), "another order of units has all launches");
  launches_ = std::move(renumbered);
  program_ = std::move(ordered.program_);
  entries_ = std::move(ordered.entries_);
  gradient_slots_ = std::move(ordered.gradient_slots_);
  set_sequence(std::move(sequence));
}

int RankProgram::place_in(PlannedLaunch& launch) const {
  const auto& entry = *launch.entry;
  if (core::is_also_sum(entry)) return plan_->mesh.place_in_group(entry.group, rank_);
  while (entry.from[launch.axis] == entry.to[launch.axis]) launch.axis += 1;
  return lanes_of(*launch.bucket).coordinates[launch.axis];
}

bool RankProgram::also_sum(core::BucketIndex bucket) const {
  return plan_->buffers[plan_->buckets[bucket].buffer].also_sum.has_value();
}

std::vector<core::Lane> RankProgram::lanes() const {
  std::vector<core::Lane> lanes;
  for (const auto& played : rounds_) {
    if (played) lanes.push_back(*played);
  }
  return lanes;
}

int RankProgram::round_of(core::Lane lane) const {
  const auto found = std::find(rounds_.begin(), rounds_.end(), std::optional(lane));
  CHECK(found != rounds_.end(), "the lane is one of this rank's");
  return static_cast<int>(found - rounds_.begin());
}

core::Lane RankProgram::lane_or_end(int round) const {
  return rounds_[round].value_or(core::Lane{plan_->options.lanes});
}

std::vector<core::LaneRange> RankProgram::leaves_of(const PlannedLaunch& launch, int member) const {
  auto at = lanes_of(*launch.bucket).coordinates;
  at[launch.axis] = member;
  return leaves_at(launch, at);
}

std::vector<core::LaneRange> RankProgram::leaves_at(const PlannedLaunch& launch,
                                                    const std::vector<int>& at) const {
  const auto& lanes = lanes_of(*launch.bucket);
  const auto axes = launch.axis + 1;
  const auto own = launch.axis < lanes.deal.partial_axes() ? lanes.deal.block(at, axes)
                                                           : lanes.deal.round_lanes(at, axes, launch.round);
  return lanes.deal.leaves_of(own, at, axes);
}

int RankProgram::source_slot(core::BucketIndex bucket, int round, int source) const {
  const auto& lanes = lanes_of(bucket);
  if (lanes.is_dealt_by_round()) return source;
  const auto block = lanes.source_blocks[static_cast<std::size_t>(source)];
  const int own = core::lane_slot({block.first + round}, block, lanes.deal.lanes());
  return source * stacks(bucket, round).depth + own;
}

std::vector<core::LaneRange> RankProgram::before(core::BucketIndex bucket, int round) const {
  const auto& lanes = lanes_of(bucket);
  const auto axes = lanes.deal.partial_axes();
  const auto first = lanes.deal.block(lanes.coordinates, axes).first;
  const auto end = lanes.deal.round_lanes(lanes.coordinates, axes, round).first;
  return tree().leaves_of({first, end - first});
}

}  // namespace troupe::actors
