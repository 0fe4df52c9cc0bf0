#include "core/program/program.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/enum_names.hpp"
#include "core/errors.hpp"

namespace troupe::core {
namespace {

constexpr auto kTensorNames = enum_names<TensorKind>("parameters", "gradients", "verdict");
constexpr auto kPoolNames = enum_names<Pool>("parameters", "gradients");

std::int64_t bytes_of(const ProgramEntry& entry) {
  return static_cast<std::int64_t>(sizeof(ProgramEntry) + entry.from.capacity() + entry.to.capacity() +
                                   entry.counts.runs.capacity() * sizeof(CountRun));
}

template <class Visit>
void for_each_stored(const Program& program, Visit visit) {
  const auto all = [&](const ProgramSegment& segment) {
    for (const ProgramRun& run : segment.runs) {
      for (const ProgramEntry& entry : run.entries) visit(entry);
    }
  };
  for (const ProgramSegment* segment : {&program.body, &program.last_round, &program.epilogue}) all(*segment);
  for (const ProgramSegment& segment : program.pass_segments) all(segment);
}

}  // namespace

std::string_view name_of(TensorKind kind) noexcept {
  return kTensorNames[kind];
}

std::string_view name_of(Finish finish) noexcept {
  constexpr auto kNames = enum_names<Finish>("check_finite", "clip", "check_large");
  return kNames[finish];
}

std::string_view name_of(Pool pool) noexcept {
  return kPoolNames[pool];
}

std::string describe(const TensorReference& tensor) {
  if (tensor.kind == TensorKind::verdict) return "verdict";
  return fmt::format("{} {}.{}", name_of(tensor.kind), tensor.unit, tensor.tensor);
}

bool is_in_blocks(const ProgramEntry& entry) {
  return entry.tensor.kind == TensorKind::parameters && is_mx_element(entry.wire);
}

std::int64_t wire_bytes(const ProgramEntry& entry, std::int64_t elements) {
  return is_in_blocks(entry) ? mx_bytes(elements) : elements * static_cast<std::int64_t>(size_of(entry.wire));
}

bool spans_stages(const ProgramEntry& entry) {
  return is_also_sum(entry) && entry.group == GroupKind::pp;
}

bool is_also_sum(const ProgramEntry& entry) {
  return entry.tensor.kind == TensorKind::gradients && entry.from == entry.to;
}

std::string describe(const ProgramEntry& entry) {
  if (is_also_sum(entry)) {
    return fmt::format("sum over {} of {}", name_of(entry.group), describe(entry.tensor));
  }
  return fmt::format("{} of {}", name_of(entry.operation), describe(entry.tensor));
}

ProgramEntry shifted(ProgramEntry entry, int units) {
  if (entry.tensor.kind != TensorKind::verdict) entry.tensor.unit += units;
  entry.ready = shifted(entry.ready, units);
  entry.needed = shifted(entry.needed, units);
  if (entry.takes) entry.takes->point = shifted(entry.takes->point, units);
  if (entry.gives) entry.gives->point = shifted(entry.gives->point, units);
  return entry;
}

std::vector<const ProgramSegment*> Program::segments() const {
  std::vector<const ProgramSegment*> all;
  const auto add = [&](const ProgramSegment& segment) {
    if (segment.times > 0 && !segment.runs.empty()) all.push_back(&segment);
  };
  add(body);
  add(last_round);
  for (const ProgramSegment& segment : pass_segments) add(segment);
  add(epilogue);
  return all;
}

int Program::unit_count() const {
  int count = 0;
  for (const UnitRun& run : units) count += run.count;
  return count;
}

const Unit& Program::unit(int index) const {
  for (const UnitRun& run : units) {
    if (index < run.count) return run.unit;
    index -= run.count;
  }
  CHECK(false, "a unit is one of the program's");
}

std::int64_t stored_entries(const Program& program) {
  std::int64_t count = 0;
  for_each_stored(program, [&](const ProgramEntry&) { ++count; });
  return count;
}

std::int64_t stored_bytes(const Program& program) {
  std::int64_t bytes = sizeof(Program);
  for_each_stored(program, [&](const ProgramEntry& entry) { bytes += bytes_of(entry); });
  for (const UnitRun& run : program.units) {
    bytes += static_cast<std::int64_t>(sizeof(UnitRun) + run.unit.tensors.capacity() * sizeof(FlatTensor));
  }
  bytes += static_cast<std::int64_t>((program.order.forward.capacity() + program.order.backward.capacity()) *
                                     sizeof(int));
  for (const Recipe& recipe : program.recipes) {
    const auto steps = recipe.before.capacity() + recipe.each_chunk.capacity() + recipe.after.capacity();
    bytes += static_cast<std::int64_t>(sizeof(Recipe) + steps * sizeof(RecipeStep));
  }
  for (const PassRun& run : program.passes) {
    bytes += static_cast<std::int64_t>(sizeof(PassRun) + run.passes.capacity() * sizeof(UnitPass));
  }
  for (const OperationRun& run : program.operations) {
    bytes += static_cast<std::int64_t>(sizeof(OperationRun));
    for (const TrainerOperation& one : run.operations) {
      bytes += static_cast<std::int64_t>(sizeof(one) + one.counts.runs.capacity() * sizeof(CountRun));
    }
  }
  return bytes;
}

StrategyPlacements placements_in(const Program& program, const Unit& unit) {
  return placements_in(program.placements, unit);
}

StrategyPlacements placements_in(const StrategyPlacements& table, const Unit& unit) {
  StrategyPlacements placements = table;
  if (unit.residency == Residency::resident) {
    placements.parameters.assign(placements.parameters.size(), Placement::replicated);
  }
  return placements;
}

}  // namespace troupe::core
