// Where a session's state comes from before its first step.
#include <algorithm>
#include <utility>

#include "actors/session/first_values.hpp"
#include "actors/session/recovery.hpp"
#include "actors/session/restore.hpp"
#include "actors/session/session_parts.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

core::Result<std::optional<Restored>> Session::restore(const RestoreOptions& options) {
  auto& s = *parts_;
  TRY(s.in_turn(s.order->between_steps("restore()")));
  if (s.step.value != 0 || s.saves->has_begun())
    return core::fail(core::Errc::invalid_argument,
                      "a session is restored before its first step, not after step {}", s.step.value);
  s.world.keep(nullptr);
  Restore restore(*s.context, {s.local.get(), s.hosts.get(), s.tensor_keys}, options, s.restores++);
  auto loaded = TRY(s.calls->within_restore([&] { return restore.run(); }));
  if (!loaded) return std::optional<Restored>{};
  if (s.experts) s.experts->restored();
  s.values->came_with_state();
  TRY(s.go_on_from({core::steps_before(loaded->restored.step), loaded->optimizer_steps,
                    std::move(loaded->steps_missed), loaded->loss_scaling, loaded->restored.last}));
  return std::optional(std::move(loaded->restored));
}

core::Result<std::optional<Restored>> Session::recover() {
  auto& s = *parts_;
  TRY(s.in_turn(s.order->between_steps("recover()")));
  if (s.step.value != 0 || s.values->are_adopted() || s.restores != 0 || s.saves->has_begun())
    return core::fail(core::Errc::invalid_argument,
                      "recover() was called after first values, restore(), a save or a step; call it right "
                      "after join()");
  s.recovers = true;
  // Nobody has been in an epoch before the first.
  if (s.world.epoch().value <= 1) return std::optional<Restored>{};
  // The memory of the trainer's own tensors went with the session before.
  auto* const remains = s.has_own_tensors || s.experts ? nullptr : dynamic_cast<Remains*>(s.world.kept());
  Recovery recovery(*s.context, remains, s.hosts.get(), s.memory);
  auto run = s.calls->within_restore([&] { return recovery.run(); });
  // Even if others did not get as far: this rank has its state here now.
  const bool has_state = run ? run->has_value() : recovery.has_taken_memory();
  if (has_state) {
    s.values->came_with_state();
    s.has_agreed = true;
    s.origin = recovery.origin();
    TRY(s.go_on_from(recovery.progress()));
  }
  auto loaded = TRY(std::move(run));
  s.world.keep(nullptr);
  if (!loaded) return std::optional<Restored>{};
  return std::optional(std::move(loaded->restored));
}

core::Result<void> Session::read_state(
    core::ParameterIndex index, std::string_view state,
    const std::function<void(std::int64_t, std::span<const float>)>& take) {
  TRY(parts_->in_turn(parts_->order->has_parameter(index)));
  TRY(parts_->in_turn(parts_->order->between_steps("read_state()")));
  TRY(parts_->has_gradient(index));
  const auto kept = TRY(parts_->values->state(index, state));
  TRY(publish_all());
  return parts_->values->visit(kept, false, take);
}

core::Result<void> Session::write_state(core::ParameterIndex index, std::string_view state,
                                        const std::function<void(std::int64_t, std::span<float>)>& fill) {
  TRY(parts_->in_turn(parts_->order->has_parameter(index)));
  TRY(parts_->in_turn(parts_->may_write_values("write_state()")));
  TRY(parts_->has_gradient(index));
  const auto kept = TRY(parts_->values->state(index, state));
  TRY(publish_all());
  return parts_->values->visit(kept, true, fill);
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

}  // namespace troupe::actors
