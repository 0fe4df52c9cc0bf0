#include "actors/session/learned_order.hpp"

#include <fmt/format.h>

#include <utility>

#include "core/errors.hpp"

namespace troupe::actors {

namespace {

/// Pipeline is the outermost axis, so the ranks of one stage are neighbours.
core::Rank first_of_stage(const SessionContext& in) {
  const int ranks = in.plan.world.value / in.plan.options.pipeline_parallel;
  return {in.rank().value / ranks * ranks};
}

}  // namespace

LearnedOrder::LearnedOrder(const SessionContext& in, int units, std::uint64_t attempt)
    : in_(in), recorder_(units), first_(first_of_stage(in)), attempt_(attempt) {}

core::Result<void> LearnedOrder::uses(core::UnitIndex unit) {
  TRY(recorder_.uses(static_cast<int>(unit.value)));
  return agree(fmt::format("{} of unit {}", recorder_.is_backward() ? "backward" : "forward", unit.value));
}

core::Result<void> LearnedOrder::begin_backward() {
  if (recorder_.is_backward()) return {};
  recorder_.begin_backward();
  return agree("begin_backward()");
}

core::Result<core::DeclaredOrder> LearnedOrder::end() {
  TRY(agree("end_learning()"));
  const auto learned = recorder_.order();
  core::DeclaredOrder declared;
  for (const int unit : learned.forward) declared.forward.push_back({static_cast<std::uint32_t>(unit)});
  for (const int unit : learned.backward) declared.backward.push_back({static_cast<std::uint32_t>(unit)});
  return declared;
}

core::Result<void> LearnedOrder::agree(const std::string& call) {
  const auto key = fmt::format("order/{}/{}/{}", first_.value, attempt_, calls_++);
  if (in_.rank() == first_) return in_.rendezvous.set(key, call);
  const auto there = TRY(in_.rendezvous.get(key, in_.options.step_deadline));
  if (there == call) return {};
  return tl::unexpected(in_.abandon(
      {core::Errc::mismatch,
       fmt::format(
           "rank {} comes to {} where rank {} comes to {}, while the order of units is learned; units "
           "are gathered by all ranks together, so a model calls them in one order everywhere",
           in_.rank().value, call, first_.value, there)}));
}

}  // namespace troupe::actors
