#include "actors/planes/step/expert_options.hpp"

#include "core/errors.hpp"

namespace troupe::actors {

core::Result<void> check_experts(const core::TrainingOptions& options, int data_parallel) {
  const int ep = options.expert_parallel;
  if (ep < 1 || data_parallel % ep != 0) {
    return core::fail(
        core::Errc::invalid_argument,
        "expert_parallel {} does not divide {} data-parallel ranks; choose a number from 1 that "
        "does",
        ep, data_parallel);
  }
  if (ep == 1) return {};
  if (options.context_parallel > 1) {
    return core::fail(
        core::Errc::unavailable,
        "expert_parallel {} with context_parallel {}: experts are distributed over ranks with lanes of their "
        "own, and those that share sequences share lanes; use one of the two",
        ep, options.context_parallel);
  }
  if (options.lanes % data_parallel != 0) {
    return core::fail(
        core::Errc::invalid_argument,
        "{} lanes are not a multiple of {} data-parallel ranks, which go through their lanes "
        "together in groups of {} that experts are distributed over; use a multiple of {} lanes",
        options.lanes, data_parallel, ep, data_parallel);
  }
  if (data_parallel / ep % options.optimizer_instances != 0) {
    return core::fail(core::Errc::invalid_argument,
                      "{} optimizer instances do not divide the {} ranks that keep the same experts; use "
                      "fewer instances, or a smaller expert_parallel",
                      options.optimizer_instances, data_parallel / ep);
  }
  return {};
}

}  // namespace troupe::actors
