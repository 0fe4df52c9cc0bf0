#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

#include "core/plan/plan.hpp"
#include "core/program/launch_cursor.hpp"
#include "core/program/plan_program.hpp"

namespace troupe::core {
namespace {

/// What the members of a group see of a collective. Bucket b is unit `units - 1 - b`: buckets are numbered in
/// the order of backward.
struct Seen {
  CollectiveKind kind;
  GroupKind group;
  int unit;
  DType dtype;
  std::vector<std::int64_t> elements;

  friend bool operator==(const Seen&, const Seen&) = default;
};

std::vector<Seen> seen_in(const Plan& plan, int units) {
  std::vector<Seen> seen;
  for (const PlanEntry& entry : plan.entries) {
    const int unit = entry.bucket ? units - 1 - static_cast<int>(entry.bucket->value) : 0;
    seen.push_back({entry.kind, entry.group, unit, entry.dtype, entry.elements});
  }
  return seen;
}

std::vector<Seen> seen_in(const Program& program) {
  std::vector<Seen> seen;
  for_each_launch(program, [&](const Launch& launch) {
    const ProgramEntry& entry = *launch.entry;
    std::vector<std::int64_t> elements;
    for (std::int64_t m = 0; m < entry.counts.members(); ++m) elements.push_back(entry.counts.of(m));
    seen.push_back({entry.operation, entry.group, entry.tensor.unit, entry.wire, std::move(elements)});
  });
  return seen;
}

/// With several copies of the optimizer `ordered` numerics go another way now, axis by axis.
RC_GTEST_PROP(PlanProgram, LaunchesForTodaysStrategiesWhatTodaysPlanDoes, ()) {
  const auto strategy = *rc::gen::element(Strategy::ddp, Strategy::zero1);
  const auto numerics = *rc::gen::element(Numerics::fast, Numerics::ordered);
  const bool copies = strategy == Strategy::zero1 && numerics == Numerics::fast;
  const int outer = copies ? *rc::gen::inRange(1, 4) : 1;
  const int ranks = outer * *rc::gen::inRange(1, 6);
  const int units = *rc::gen::inRange(1, 5);
  const Mesh mesh = Mesh::create({.dp = ranks, .optimizer_instances = outer}).value();
  auto inputs = inputs_of(strategy, mesh).value();
  inputs.numerics = numerics;
  inputs.lanes = ranks + *rc::gen::inRange(0, 20);
  inputs.verdict_elements = 30;
  inputs.classes = {{.storage = DType::bf16}};
  StepDescription step{
      .strategy = strategy, .numerics = numerics, .lanes = inputs.lanes, .verdict_elements = 30};
  for (int unit = 0; unit < units; ++unit) {
    const std::int64_t elements =
        strategy == Strategy::ddp ? *rc::gen::inRange(0, 99) : ranks * *rc::gen::inRange(0, 99);
    inputs.units.push_back({.residency = Residency::resident, .tensors = {{.elements = elements}}});
    step.buckets.insert(step.buckets.begin(), {.elements = elements, .parameter_dtype = DType::bf16});
  }

  const auto plan = plan_step(step, mesh).value();

  for (int rank = 0; rank < ranks; ++rank) {
    const auto program = plan_program(inputs, coordinates_in(inputs.domains[0], mesh, {rank})).value();
    RC_ASSERT(seen_in(program) == seen_in(plan, units));
  }
}

}  // namespace
}  // namespace troupe::core
