#include "actors/session/unit_gate.hpp"

#include <algorithm>
#include <utility>

#include "core/errors.hpp"
#include "core/indices.hpp"

namespace troupe::actors {

using core::Errc;
using core::Phase;
using core::Result;
using messages::Role;

UnitGate::UnitGate(const SessionContext& context, std::chrono::nanoseconds deadline, Exposed exposed)
    : in_(context),
      program_(context.data.program()),
      deadline_(deadline),
      exposed_(std::move(exposed)),
      clock_(program_.clock()),
      resident_(context.plan.resident_units),
      declared_(static_cast<std::uint32_t>(context.plan.inputs.units.size()) -
                static_cast<std::uint32_t>(context.plan.resident_units)),
      buckets_(context.plan.inputs.units.size()) {
  for (const auto bucket : in_.buckets()) {
    buckets_[in_.plan.buckets[bucket].unit].push_back(bucket);
  }
  gradient_users_.resize(
      static_cast<std::size_t>(program_.program().credits[static_cast<std::size_t>(core::Pool::gradients)]));
  read_program();
}

void UnitGate::read_program() {
  clock_ = program_.clock();
  gathers_.clear();
  gathers_for_.clear();
  for (const auto entry : program_.sequence()) {
    const auto& launch = program_.launch(entry);
    if (launch.is_verdict() || launch.moves_gradients() || launch.publishes()) continue;
    gathers_.push_back({entry, launch.ready});
    gathers_for_[launch.needed].push_back(entry);
  }
}

std::optional<core::UnitIndex> UnitGate::unit_of(core::ParameterIndex parameter) const {
  const auto unit = in_.plan.buckets[in_.plan.parameters[parameter].bucket].unit;
  if (unit < resident_) return {};
  return core::UnitIndex{static_cast<std::uint32_t>(unit - resident_)};
}

std::optional<core::TrainerPoint> UnitGate::place() const {
  if (!open_) return {};
  return core::TrainerPoint{phase_, *open_};
}

bool UnitGate::is_gathered(int unit) const {
  const auto& buckets = buckets_[unit];
  return !buckets.empty() && in_.plan.has_sharded_parameters(buckets.front());
}

Result<void> UnitGate::has_unit(core::UnitIndex unit) const {
  if (unit.value < declared_) return {};
  return core::fail(Errc::invalid_argument, "there is no unit {}: parameters name {}, numbered from 0",
                    unit.value, declared_);
}

/// Where the strategy keeps all parameters of every unit: their updates and gathers, by bucket.
Result<void> UnitGate::wait_resident(core::UnitIndex unit) {
  bool is_named = false;
  for (const auto p : in_.plan.specs.indices()) {
    if (in_.plan.specs[p].unit != unit) continue;
    is_named = true;
    TRY(wait_published(in_.plan.parameters[p].bucket));
  }
  if (is_named) return {};
  return core::fail(Errc::invalid_argument, "there is no unit {}: no parameter names it", unit.value);
}

void UnitGate::begin_step(core::Step step, core::Step decided) {
  step_ = step;
  decided_ = decided;
  round_ = -1;
  next_pass_ = 0;
  passed_ = -1;
  next_gather_ = 0;
}

Result<void> UnitGate::begin_round() {
  round_ += 1;
  phase_ = Phase::forward;
  return pass(clock_.at({Phase::round_begin, 0}, round_));
}

Result<void> UnitGate::begin_backward() {
  if (learned_) {
    close();
    return learned_->begin_backward();
  }
  if (phase_ == Phase::backward) return {};
  close();
  // What follows round_begin are the forwards of all units.
  TRY(pass(clock_.at({Phase::round_begin, 0}, round_) + static_cast<std::int64_t>(buckets_.size())));
  phase_ = Phase::backward;
  return {};
}

Result<core::Lane> UnitGate::begin_pass(std::size_t index) {
  const auto lane_of = [&](std::size_t pass) { return program_.rounds()[passes()[pass].round]; };
  std::size_t expected = next_pass_;
  while (expected < passes().size() && !lane_of(expected)) ++expected;
  if (index != expected) {
    return core::fail(Errc::invalid_argument,
                      "begin_pass({}) was called where {} comes next: a step goes through the {} passes of "
                      "SessionOptions::passes in their order, but for rounds in which this rank has no lane",
                      index, expected < passes().size() ? fmt::format("pass {}", expected) : "none",
                      passes().size());
  }
  const core::UnitPass& begun = passes()[index];
  close();
  next_pass_ = index + 1;
  phase_ = core::phase_of(begun.kind);
  round_ = begun.round;
  const int first = phase_ == Phase::forward ? begun.first : begun.end - 1;
  TRY(pass(clock_.at({phase_, first}, round_) - 1));
  return *lane_of(index);
}

Result<void> UnitGate::may_end_round() const {
  if (passes().empty()) return {};
  for (std::size_t i = next_pass_; i < passes().size(); ++i) {
    if (passes()[i].round != round_) continue;
    return core::fail(Errc::invalid_argument,
                      "end_lane() was called before pass {} of the lane, {}; call begin_pass() first", i,
                      core::describe(passes()[i]));
  }
  return {};
}

Result<void> UnitGate::acquire(core::UnitIndex index) {
  if (!has_units()) return wait_resident(index);
  TRY(has_unit(index));
  const int unit = program_unit(index);
  if (open_ == unit) return {};
  if (learned_) TRY(learned_->uses(index));
  if (evaluating_) return gather_for_evaluation(unit);
  if (!passes().empty() && clock_.pass_of({phase_, unit}, round_) + 1 != static_cast<int>(next_pass_)) {
    return core::fail(Errc::invalid_argument, "unit {} is not of the pass that has begun, {}", index.value,
                      core::describe(passes()[next_pass_ - 1]));
  }
  const auto at = clock_.at({phase_, unit}, round_);
  if (at <= passed_) return tl::unexpected(is_over(index));
  close();
  TRY(pass(at - 1));
  if (is_gathered(unit)) {
    TRY(gather(unit, phase_, round_));
  } else {
    TRY(wait_published(unit));
  }
  open(unit);
  if (adds_gradients(phase_)) TRY(wait_gradients(unit, round_));
  return {};
}

void UnitGate::open(int unit) {
  open_ = unit;
  for (const auto bucket : buckets_[unit]) in_.data.marks().acquired(bucket, open_slot_);
}

/// A unit that is acquired too late, or again.
core::Error UnitGate::is_over(core::UnitIndex unit) const {
  if (program_.program().order.empty()) {
    return {Errc::invalid_argument,
            fmt::format("unit {} is done in {}: units are acquired in the order of forward, then, after "
                        "begin_backward(), in the opposite order, each once",
                        unit.value, core::name_of(phase_))};
  }
  const int reached = open_ ? *open_ : clock_.point(passed_).unit;
  return {
      Errc::invalid_argument,
      fmt::format("unit {} is done in {}: the order of units does not have it after unit {}, which was "
                  "reached; acquire units as they were declared or learned, each once in forward and once "
                  "in backward",
                  unit.value, core::name_of(phase_), reached - resident_)};
}

Result<void> UnitGate::release(core::UnitIndex index) {
  if (!has_units()) return {};
  TRY(has_unit(index));
  const int unit = program_unit(index);
  if (open_ != unit) {
    return core::fail(Errc::invalid_argument, "unit {} was released, but it was not acquired", index.value);
  }
  close();
  return evaluating_ ? Result<void>{} : pass(clock_.at({phase_, unit}, round_));
}

/// What was read of the open unit is enqueued.
void UnitGate::close() {
  if (open_ && open_slot_ >= 0) in_.data.marks().released(open_slot_);
  open_.reset();
  open_slot_ = -1;
}

Result<void> UnitGate::end_round() {
  close();
  return pass(clock_.at({Phase::round_end, 0}, round_));
}

Result<void> UnitGate::pass_rest() {
  close();
  return pass(clock_.at({Phase::finish, 0}, 0) - 1);
}

Result<void> UnitGate::pass(std::int64_t at) {
  while (passed_ < at) TRY(pass_point(passed_ + 1));
  return {};
}

/// The point has ended: what may start after it is said to whom it concerns. The gradients of a unit that was
/// not acquired are zeros, which are reduced from its slot all the same: it waits for the slot's last user,
/// and the next user waits for it. In a round without a lane the device waits for those zeros.
Result<void> UnitGate::pass_point(std::int64_t at) {
  while (next_gather_ < gathers_.size() && gathers_[next_gather_].ready <= at) {
    const auto entry = gathers_[next_gather_++].entry;
    in_.post(Role::parameter_shard, program_.launch(entry).bucket->value, messages::UnitWanted{step_, entry});
  }
  const auto point = clock_.point(at);
  const int round = clock_.round_of(at);
  const bool adds = adds_gradients(point.phase) && point.unit >= resident_;
  const bool has_lane = program_.rounds()[round].has_value();
  if (adds && has_lane) TRY(wait_gradients(point.unit, round));
  if (adds && !has_lane) take_gradients(point.unit, round);
  passed_ = at;
  if (adds) end_lane_of(point.unit, round);
  if (point.phase != Phase::round_end) return {};
  for (int unit = resident_; unit-- > 0;) end_lane_of(unit, round);
  return {};
}

void UnitGate::end_lane_of(int unit, int round) {
  const auto lane = program_.rounds()[round].value_or(core::Lane{-1});
  for (const auto bucket : buckets_[unit]) {
    if (!in_.plan.is_trainable(bucket)) continue;
    in_.post(Role::gradient_bucket, bucket.value, messages::LaneEnded{step_, lane});
  }
}

Result<void> UnitGate::wait_published(int unit) {
  for (const auto bucket : buckets_[unit]) TRY(wait_published(bucket));
  return {};
}

Result<void> UnitGate::wait_published(core::BucketIndex bucket) {
  if (in_.inbox.is_published(bucket, decided_)) return {};
  return exposed_([&] { return in_.inbox.wait_published(bucket, decided_, deadline_); });
}

Result<void> UnitGate::gather(int unit, Phase phase, int round) {
  for (const auto entry : gathers_for_.at(clock_.at({phase, unit}, round))) {
    const auto& launch = program_.launch(entry);
    const auto bucket = *launch.bucket;
    TRY(exposed_([&] { return in_.inbox.wait_unit(bucket, step_, entry, deadline_); }));
    open_slot_ = launch.slot;
  }
  return {};
}

/// The slot's last user has handed its gradients over, in the round before or in this one.
Result<void> UnitGate::wait_gradients(int unit, int round) {
  for (const auto bucket : buckets_[unit]) {
    const int slot = program_.gradient_slot(bucket);
    if (slot < 0) continue;
    const auto& user = gradient_users_[slot];
    if (user.unit < 0 || user == User{unit, step_, program_.lane_or_end(round)}) break;
    for (const auto before : buckets_[user.unit]) {
      if (!in_.plan.is_trainable(before)) continue;
      TRY(exposed_([&] { return in_.inbox.wait_merged(before, user.step, user.lane, deadline_); }));
    }
    break;
  }
  take_gradients(unit, round);
  return {};
}

void UnitGate::take_gradients(int unit, int round) {
  for (const auto bucket : buckets_[unit]) {
    const int slot = program_.gradient_slot(bucket);
    if (slot < 0) continue;
    gradient_users_[slot] = {unit, step_, program_.lane_or_end(round)};
  }
}

void UnitGate::begin_evaluation(core::Step decided) {
  evaluating_ = true;
  decided_ = decided;
}

void UnitGate::end_evaluation() {
  close();
  evaluating_ = false;
}

void UnitGate::begin_learning(core::Step decided) {
  begin_evaluation(decided);
  learned_.emplace(in_, static_cast<int>(declared_), times_learned_++);
}

core::Result<core::DeclaredOrder> UnitGate::end_learning() {
  end_evaluation();
  auto learned = declared_ > 0 ? learned_->end() : core::DeclaredOrder{};
  learned_.reset();
  return learned;
}

Result<void> UnitGate::gather_for_evaluation(int unit) {
  close();
  if (!is_gathered(unit)) {
    TRY(wait_published(unit));
    open(unit);
    return {};
  }
  open_slot_ = in_.data.launches().gather_unit(buckets_[unit]);
  TRY(in_.inbox.wait_gathered(deadline_));
  open(unit);
  return {};
}

Result<int> UnitGate::slot_of(core::ParameterIndex parameter) const {
  const auto bucket = in_.plan.parameters[parameter].bucket;
  if (!in_.plan.has_sharded_parameters(bucket)) return -1;
  if (open_ == in_.plan.buckets[bucket].unit) return open_slot_;
  const auto unit = unit_of(parameter)->value;
  return core::fail(Errc::unavailable,
                    "{} is in unit {}, whose parameters are not gathered; call acquire({}) in a step or an "
                    "evaluation, or write_parameter() for first values",
                    in_.plan.specs[parameter].name, unit, unit);
}

Result<void> UnitGate::may_complete_gradient(core::ParameterIndex parameter) const {
  const auto bucket = in_.plan.parameters[parameter].bucket;
  const auto unit = unit_of(parameter);
  if (!unit || learned_ || program_.gradient_slot(bucket) < 0) return {};
  const bool adds = adds_gradients(phase_);
  if (adds && open_ == program_unit(*unit)) return {};
  const std::string_view first = adds               ? ""
                                 : passes().empty() ? "begin_backward(), then "
                                                    : "begin_pass() of the backward of its parameters, then ";
  return core::fail(
      Errc::invalid_argument,
      "{} is in unit {}, whose gradients are written only while it is acquired in backward; call "
      "{}acquire({}) before adding to them",
      in_.plan.specs[parameter].name, unit->value, first, unit->value);
}

}  // namespace troupe::actors
