// Where a session's state comes from before its first step, whether it is the same on all ranks, and where it
// goes after the last.
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "actors/session/device_copies.hpp"
#include "actors/session/first_values.hpp"
#include "actors/session/recovery.hpp"
#include "actors/session/restore.hpp"
#include "actors/session/session_parts.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"
#include "gpu/order/task_order.hpp"

namespace troupe::actors {

core::Result<std::optional<Restored>> Session::restore(const RestoreOptions& options) {
  auto& s = *parts_;
  TRY(s.in_turn(s.order->between_steps("restore()")));
  if (s.step.value != 0 || s.saves->has_begun())
    return core::fail(core::Errc::invalid_argument,
                      "a session is restored before its first step, not after step {}", s.step.value);
  s.world.keep(nullptr);
  Restore restore(*s.context, {s.local.get(), s.hosts.get(), s.tensor_keys}, options, s.restores++);
  s.called(messages::Call::restore);
  s.enter(gpu::FlightPhase::restoring);
  s.expect_alike(messages::Call::restore);
  auto run = restore.run();
  s.expect_nothing();
  s.enter(gpu::FlightPhase::between_steps);
  auto loaded = TRY(std::move(run));
  if (!loaded) return std::optional<Restored>{};
  if (s.experts) s.experts->restored();
  s.adopted = true;
  TRY(s.go_on_from({core::steps_before(loaded->restored.step), loaded->optimizer_steps,
                    std::move(loaded->steps_missed), loaded->loss_scaling, loaded->restored.last}));
  return std::optional(std::move(loaded->restored));
}

core::Result<std::optional<Restored>> Session::recover() {
  auto& s = *parts_;
  TRY(s.in_turn(s.order->between_steps("recover()")));
  if (s.step.value != 0 || s.adopted || s.restores != 0 || s.saves->has_begun())
    return core::fail(core::Errc::invalid_argument,
                      "recover() was called after first values, restore(), a save or a step; call it right "
                      "after join()");
  s.recovers = true;
  // Nobody has been in an epoch before the first.
  if (s.world.epoch().value <= 1) return std::optional<Restored>{};
  // The memory of the trainer's own tensors went with the session before.
  auto* const remains = s.has_own_tensors || s.experts ? nullptr : dynamic_cast<Remains*>(s.world.kept());
  Recovery recovery(*s.context, remains, s.hosts.get(), s.memory);
  s.called(messages::Call::restore);
  s.enter(gpu::FlightPhase::restoring);
  s.expect_alike(messages::Call::restore);
  auto run = recovery.run();
  s.expect_nothing();
  s.enter(gpu::FlightPhase::between_steps);
  // Even if others did not get as far: this rank has its state here now.
  const bool has_state = run ? run->has_value() : recovery.has_taken_memory();
  if (has_state) {
    s.adopted = s.has_agreed = true;
    s.origin = recovery.origin();
    TRY(s.go_on_from(recovery.progress()));
  }
  auto loaded = TRY(std::move(run));
  s.world.keep(nullptr);
  if (!loaded) return std::optional<Restored>{};
  return std::optional(std::move(loaded->restored));
}

core::Result<RankTensors::Part> Session::Parts::resting_state(core::ParameterIndex index,
                                                              std::string_view state) const {
  TRY(has_gradient(index));
  const auto& states = plan.buffers[plan.parameters[index].buffer].states;
  const auto found = std::find(states.begin(), states.end(), state);
  if (found == states.end())
    return core::fail(core::Errc::invalid_argument, "the optimizer keeps no '{}' of {}, but: {}", state,
                      plan.specs[index].name, fmt::join(states, ", "));
  const auto kind = found == states.begin() ? StateKind::first_state : StateKind::second_state;
  return data->tensors().state(kind, index);
}

core::Result<void> Session::Parts::visit_state(
    core::ParameterIndex index, std::string_view state, bool writes,
    const std::function<void(std::int64_t, std::span<float>)>& visit) {
  const auto kept = TRY(resting_state(index, state));
  TRY(publish_all());
  if (kept.range.size() == 0) return {};
  auto& device = world.device();
  if (device.is_host_memory()) {
    gpu::declare(device, "optimizer's state", {kept.memory}, {kept.memory});
    visit(kept.range.start, kept.memory.as<float>());
    return {};
  }
  const auto staging = TRY(device.allocate_staging(kept.memory.bytes));
  DeviceCopies copies(*context);
  if (!writes) TRY(copies.copy(kept.memory, staging.view()));
  visit(kept.range.start, staging.view().as<float>());
  return writes ? copies.copy(staging.view(), kept.memory) : core::Result<void>{};
}

core::Result<void> Session::read_state(
    core::ParameterIndex index, std::string_view state,
    const std::function<void(std::int64_t, std::span<const float>)>& take) {
  TRY(parts_->in_turn(parts_->order->has_parameter(index)));
  TRY(parts_->in_turn(parts_->order->between_steps("read_state()")));
  return parts_->visit_state(index, state, false, take);
}

core::Result<void> Session::write_state(core::ParameterIndex index, std::string_view state,
                                        const std::function<void(std::int64_t, std::span<float>)>& fill) {
  TRY(parts_->in_turn(parts_->order->has_parameter(index)));
  TRY(parts_->in_turn(parts_->may_write_values("write_state()")));
  return parts_->visit_state(index, state, true, fill);
}

core::Result<std::vector<std::int64_t>> Session::steps_taken() const {
  const auto& s = *parts_;
  TRY(s.in_turn(s.order->between_steps("steps_taken()")));
  auto steps = TRY(core::steps_missed_by(s.plan.specs, s.steps_missed));
  steps.resize(s.plan.specs.size(), 0);
  for (auto& missed : steps) missed = s.optimizer_steps.value - missed;
  return steps;
}

core::Result<void> Session::write_steps_taken(std::span<const std::int64_t> steps) {
  auto& s = *parts_;
  TRY(s.in_turn(s.may_write_values("write_steps_taken()")));
  const bool any_negative = std::any_of(steps.begin(), steps.end(), [](auto count) { return count < 0; });
  if (steps.size() != s.plan.specs.size() || any_negative)
    return core::fail(core::Errc::invalid_argument,
                      "write_steps_taken() expects a count, which is not negative, for each of {} parameters",
                      s.plan.specs.size());
  const auto most = steps.empty() ? 0 : *std::max_element(steps.begin(), steps.end());
  LoadedState loaded;
  loaded.restored.step = core::next_step(core::StepCount{most});
  loaded.optimizer_steps = {most};
  for (const auto p : s.plan.specs.indices()) {
    const auto missed = most - steps[place_of(p)];
    if (missed == 0) continue;
    for (const auto& part : TRY(s.plan.specs[p].stored_parts())) loaded.steps_missed[part.key] = missed;
  }
  TRY(go_on_after(*s.context, loaded));
  return s.go_on_from({{most}, loaded.optimizer_steps, std::move(loaded.steps_missed), {}});
}

/// A job that restores has the same values on all ranks too, unless a rank wrote others.
core::Result<void> Session::Parts::agree_on_first_values() {
  if (has_agreed) return {};
  expect_alike(messages::Call::begin_step);
  FirstValuesOfRanks values(*context, group_maker(), first_values_compared++);
  TRY(options.first_values == FirstValues::broadcast ? values.broadcast() : values.compare());
  expect_nothing();
  has_agreed = true;
  return {};
}

core::Result<void> Session::Parts::compare_replicas(messages::Call call) {
  const auto over = progress().over;
  if (!replica_check || over == compared || decided.value < 0) return {};
  TRY(publish_all());
  expect_alike(call);
  auto alike = in_time(replica_check->run(over));
  expect_nothing();
  // What steps have made of gradients that came from other values is not gone on from.
  if (!alike) origin = 0;
  compared = over;
  return alike;
}

core::Result<void> Session::Parts::compare_replicas_for(messages::Call save) {
  auto& count = calls[static_cast<std::size_t>(save)];
  count += 1;
  auto alike = compare_replicas(save);
  count -= 1;  // until the save has begun
  return alike;
}

core::Result<void> Session::Parts::go_on_from(Saves::Progress from) {
  step = core::next_step(from.over);
  optimizer_steps = from.optimizer_steps;
  steps_missed = std::move(from.steps_missed);
  last = std::move(from.last);
  return from.loss_scaling ? scaler.restore(*from.loss_scaling) : core::Result<void>{};
}

/// Where there is no room for two, the memory of the epoch before goes.
core::Result<std::unique_ptr<DataPlane>> Session::Parts::make_data(const DataPlane::Options& plane) {
  auto made = DataPlane::create(world.device(), plan, plane);
  const bool lacks_room = !made && made.error().code == core::Errc::out_of_memory;
  if (!lacks_room || world.kept() == nullptr) return made;
  world.log(Subsystem::session)
      .info("this rank gives up what it has in memory from the epoch before, beside which {}",
            made.error().message);
  world.keep(nullptr);
  return DataPlane::create(world.device(), plan, plane);
}

core::Result<void> Session::Parts::let_others_join() {
  if (!is_kept_for_recovery()) {
    auto joined = saves->let_others_join(progress().over);
    ends_for_others = !joined;
    return joined;
  }
  // What was begun is of use to whoever restores.
  TRY(saves->wait());
  TRY(saves->wait_local());
  TRY(publish_all());
  ends_for_others = true;
  return core::fail(core::Errc::peer_lost,
                    "other ranks join the job after {} steps; ProcessWorld::form_anew() says how it goes on",
                    progress().over.value);
}

void Session::Parts::note_begun(const messages::StepBegan& step_begun) {
  if (begun.size() == 2) begun.erase(begun.begin());
  begun.push_back(step_begun);
  if (origin != 0) return;
  // From first values or a checkpoint, as on all ranks.
  origin = world.epoch().value;
  world.keep(nullptr);
}

void Session::Parts::leave_remains() {
  const bool goes_on = inbox.failure().has_value() || ends_for_others;
  const bool is_whole = origin != 0 && data && gate;
  if (!goes_on || !is_whole || !may_keep_state()) return;
  // Nothing but the data plane uses its streams and its memory any more.
  sequencer.reset();
  gate.reset();
  saves.reset();
  meter.reset();
  router.reset();
  hosts.reset();
  replica_check.reset();
  local.reset();
  checkpoints.reset();
  auto from = progress();
  auto remains = Remains::take(
      {std::move(own_plan), std::move(data), std::move(rank_state), origin, std::move(from), scaler, begun},
      trainer_deadline());
  if (remains) return world.keep(*std::move(remains));
  world.log(Subsystem::session)
      .info("this rank has no state in memory for the next epoch: {}", remains.error().message);
}

}  // namespace troupe::actors
