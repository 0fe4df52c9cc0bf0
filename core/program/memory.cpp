#include "core/program/memory.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.hpp"
#include "core/exact_sum.hpp"
#include "core/plan/placement.hpp"
#include "core/program/domain_lanes.hpp"
#include "core/program/launch_cursor.hpp"

namespace troupe::core {
namespace {

/// Scratch for an exchange and for the previous one, whose bytes are still being summed.
constexpr std::int64_t kStagingSlots = 2;

std::int64_t bytes(std::int64_t elements, DType dtype) {
  return elements * static_cast<std::int64_t>(size_of(dtype));
}

DomainLanes domain_lanes(const Program& program, std::size_t domain) {
  auto lanes = lanes_of(domain, program.domains, program.placements.gradients, program.lanes,
                        program.coordinates, program.pieces);
  CHECK(lanes.has_value(), "a planned program's lanes can be dealt");
  return *std::move(lanes);
}

class MemoryCount {
 public:
  explicit MemoryCount(const Program& program)
      : program_(program),
        sharded_gradients_(std::find(program.placements.gradients.begin(), program.placements.gradients.end(),
                                     Placement::flat_shard) != program.placements.gradients.end()) {}

  ProgramMemory count() {
    for (const UnitRun& run : program_.units) add(run);
    memory_.parameter_pool = program_.credits[static_cast<std::size_t>(Pool::parameters)] * largest_gathered_;
    memory_.gradient_pool = program_.credits[static_cast<std::size_t>(Pool::gradients)] * largest_reduced_;
    for (const ProgramSegment* segment : program_.segments()) {
      for (const ProgramRun& run : segment->runs) {
        for (const ProgramEntry& entry : run.entries) stage(entry);
      }
    }
    memory_.staging = kStagingSlots * (memory_.incoming + memory_.outgoing + memory_.carry) + memory_.blocks;
    memory_.scratch = program_.optimizer_scratch_bytes;
    memory_.checks += bytes(program_.verdict_elements, DType::i64);
    return memory_;
  }

 private:
  void add(const UnitRun& run) {
    const auto placements = placements_in(program_, run.unit);
    const bool gathered = run.unit.residency == Residency::on_demand && run.unit.use != UnitUse::none;
    std::int64_t full = 0;
    std::int64_t full_gradients = 0;
    for (const FlatTensor& tensor : run.unit.tensors) {
      const TensorClass& c = program_.classes[tensor.tensor_class];
      const auto& sizes = program_.domains[c.domain].sizes;
      const auto part = [&](const Placements& role) { return tensor.elements / shard_count(role, sizes); };
      memory_.parameters += run.count * bytes(part(placements.parameters), c.storage);
      full += bytes(tensor.elements, c.storage);
      if (!tensor.trainable) continue;
      memory_.gradients += run.count * slots_of(c.domain) * bytes(part(placements.gradients), c.gradient);
      if (c.main != c.storage) memory_.main += run.count * bytes(part(placements.optimizer), c.main);
      memory_.optimizer += run.count * part(placements.optimizer) * c.optimizer.state_bytes();
      memory_.checks += run.count * static_cast<std::int64_t>(sizeof(ExactSquareSum));
      full_gradients += full_gradient_slots(program_, c.domain) * bytes(tensor.elements, c.gradient);
    }
    if (gathered) largest_gathered_ = std::max(largest_gathered_, full);
    if (!sharded_gradients_ || run.unit.use != UnitUse::forward_and_backward) return;
    if (run.unit.residency == Residency::resident) {
      memory_.gradients += run.count * full_gradients;
    } else {
      largest_reduced_ = std::max(largest_reduced_, full_gradients);
    }
  }

  std::int64_t slots_of(std::size_t domain) {
    gradient_slots_.resize(program_.domains.size());
    if (gradient_slots_[domain] == 0) gradient_slots_[domain] = gradient_slots(program_, domain);
    return gradient_slots_[domain];
  }

  /// An exchange along an inner axis leaves the subtree roots of its members' lanes to the exchange along the
  /// next axis; the first root is where the sum will be, the others next to it.
  std::int64_t carried(const ProgramEntry& entry, std::size_t domain) const {
    if (entry.operation != CollectiveKind::all_to_all || entry.elements == 0) return 0;
    if (program_.numerics == Numerics::fast) return 0;
    std::size_t axis = 0;
    while (axis < entry.to.size() && entry.to[axis] == entry.from[axis]) ++axis;
    const bool rests = entry.to == program_.placements.gradients;
    if (axis == 0 || rests || entry.from[axis - 1] != Placement::partial) return 0;
    const auto lanes = domain_lanes(program_, domain);
    const auto leaves = lanes.deal.tree().leaves_of(lanes.deal.block(lanes.coordinates, axis));
    const auto roots = roots_of(leaves, lanes.deal.tree()).size();
    return static_cast<std::int64_t>(roots - 1) * longest_part(entry.elements, entry.counts.members());
  }

  /// Its recipe brings what others have to a staging credit, whatever the round.
  bool stages_sums(const ProgramEntry& entry) const {
    const auto number = static_cast<std::size_t>(entry.first);
    if (number >= program_.recipes.size()) return false;
    const auto& steps = program_.recipes[number].before;
    return std::any_of(steps.begin(), steps.end(),
                       [](const RecipeStep& step) { return step.action == Action::cut_sums; });
  }

  /// What a collective needs in addition to the memory of gradients, and of parameters as stored.
  void stage(const ProgramEntry& entry) {
    if (is_in_blocks(entry)) memory_.blocks = std::max(memory_.blocks, wire_bytes(entry, entry.elements));
    if (entry.tensor.kind != TensorKind::gradients) return;
    const std::int64_t members = entry.counts.members();
    const Unit& unit = program_.unit(entry.tensor.unit);
    const TensorClass& c =
        program_.classes[unit.tensors[static_cast<std::size_t>(entry.tensor.tensor)].tensor_class];
    std::int64_t in = 0;
    std::int64_t out = 0;
    if (entry.operation == CollectiveKind::all_to_all && members > 1) {
      const std::int64_t part = longest_part(entry.elements, members);
      const std::int64_t moved = entry.chunk > 0 ? std::min(entry.chunk, part) : part;
      const std::int64_t roots = entry.elements > 0 ? entry.counts.total() / entry.elements : 0;
      const std::int64_t own =
          entry.elements > 0 ? entry.counts.of(place_in(program_, entry)) / entry.elements : 0;
      in = roots * moved;
      // Parts of several roots, of a chunk, or of another dtype are not laid out as they are sent.
      if (own > 1 || moved < part || entry.wire != c.gradient) {
        out = moved < part ? own * members * moved : own * entry.elements;
      }
    } else if (entry.operation == CollectiveKind::reduce_scatter) {
      // A microbatch's sum is placed next to that of the earlier microbatches.
      const bool adds =
          program_.rounds > 1 && sharded_gradients_ && entry.to == program_.placements.gradients;
      if (adds || entry.wire != c.gradient) in = longest_part(entry.elements, members);
      if (entry.wire != c.gradient) out = entry.elements;
    } else if (entry.operation == CollectiveKind::all_reduce) {
      if (stages_sums(entry)) in = entry.elements;
      if (entry.wire != c.gradient) out = entry.elements;
    } else if (entry.operation == CollectiveKind::all_gather && is_also_sum(entry)) {
      in = entry.chunk > 0 ? members * entry.chunk : entry.elements;
    } else if (entry.operation == CollectiveKind::all_gather && entry.wire != c.gradient && members > 1) {
      in = entry.chunk > 0 ? members * entry.chunk : entry.elements;
      out = entry.chunk > 0 ? entry.chunk : longest_part(entry.elements, members);
    }
    memory_.incoming = std::max(memory_.incoming, bytes(in, entry.wire));
    memory_.outgoing = std::max(memory_.outgoing, bytes(out, entry.wire));
    memory_.carry = std::max(memory_.carry, bytes(carried(entry, c.domain), DType::f32));
  }

  const Program& program_;
  bool sharded_gradients_;
  ProgramMemory memory_;
  std::vector<std::int64_t> gradient_slots_;  // per domain; 0: not known yet
  std::int64_t largest_gathered_ = 0;
  std::int64_t largest_reduced_ = 0;
};

}  // namespace

int gradient_slots(const Program& program, std::size_t domain) {
  if (program.numerics == Numerics::fast) return 1;
  const auto lanes = domain_lanes(program, domain);
  if (!lanes.is_dealt_by_round()) return source_stacks(lanes, 0).slots;
  return resting_stacks(lanes, program.rounds).slots;
}

int full_gradient_slots(const Program& program, std::size_t domain) {
  if (program.numerics == Numerics::fast) return 1;
  return sources_in(program.domains[domain], program.domains[0]) * program.pieces.of_rank;
}

ProgramMemory memory_of(const Program& program) {
  return MemoryCount(program).count();
}

std::string describe(const ProgramMemory& memory) {
  const auto mib = [](std::int64_t bytes) {
    return fmt::format("{:.1f}", static_cast<double>(bytes) / (1024.0 * 1024.0));
  };
  return fmt::format(
      "{} MiB: parameters {}, gradients {}, main values {}, optimizer {}, pools {}, staging {}, scratch {}",
      mib(memory.total()), mib(memory.parameters), mib(memory.gradients), mib(memory.main),
      mib(memory.optimizer), mib(memory.pools()), mib(memory.staging), mib(memory.scratch + memory.checks));
}

std::int64_t bytes_sent(const ProgramEntry& entry, std::int64_t place) {
  const std::int64_t members = entry.counts.members();
  const std::int64_t own =
      even_part({0, entry.elements}, static_cast<int>(members), static_cast<int>(place)).size();
  const std::int64_t others = entry.elements - own;
  switch (entry.operation) {
    case CollectiveKind::all_gather:
      return wire_bytes(entry, entry.counts.of(place)) * (members - 1);
    case CollectiveKind::reduce_scatter:
      return bytes(others, entry.wire);
    case CollectiveKind::all_reduce:
      return bytes(others + own * (members - 1), entry.wire);
    case CollectiveKind::all_to_all:
      return entry.elements == 0 ? 0 : bytes(entry.counts.of(place) / entry.elements * others, entry.wire);
    case CollectiveKind::broadcast:
      break;
  }
  CHECK(false, "no plan broadcasts");
}

std::int64_t place_in(const Program& program, const ProgramEntry& entry) {
  for (const Domain& domain : program.domains) {
    for (std::size_t axis = 0; axis < domain.axes.size(); ++axis) {
      if (domain.axes[axis] != entry.group) continue;
      return coordinates_in(domain, program.domains[0], program.coordinates)[axis] % domain.sizes[axis];
    }
  }
  return 0;
}

std::vector<Traffic> traffic_of(const Program& program) {
  std::vector<Traffic> traffic;
  for_each_launch(program, [&](const Launch& launch) {
    const auto communicator = communicator_of(*launch.entry);
    auto found = std::find_if(traffic.begin(), traffic.end(),
                              [&](const Traffic& t) { return t.communicator == communicator; });
    if (found == traffic.end()) found = traffic.insert(found, {.communicator = communicator});
    ++found->launches;
    found->bytes += bytes_sent(*launch.entry, place_in(program, *launch.entry));
  });
  return traffic;
}

}  // namespace troupe::core
