#include "core/program/job_programs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/program/domain_lanes.hpp"
#include "core/program/launch_cursor.hpp"
#include "core/program/program_text.hpp"

namespace troupe::core {
namespace {

BlockShape shape_of(LaneRange block, const ProgramInputs& inputs) {
  BlockShape shape{.count = block.count};
  if (inputs.numerics == Numerics::fast) return shape;
  // Nodes within the block are not wider than it.
  shape.offset = block.first % static_cast<int>(std::bit_floor(static_cast<unsigned>(block.count)));
  shape.is_last = block.end() == inputs.lanes;
  return shape;
}

bool has_gradients_in(const ProgramInputs& inputs, std::size_t domain) {
  return inputs.numerics == Numerics::ordered &&
         std::any_of(inputs.classes.begin(), inputs.classes.end(),
                     [&](const TensorClass& c) { return c.domain == domain; });
}

/// The blocks of lanes which decide in what programs of the same inputs differ.
Result<std::vector<BlockShape>> shapes_at(const std::vector<int>& coordinates, const LaneDeal& deal,
                                          const ProgramInputs& inputs) {
  std::vector<BlockShape> shapes;
  for (std::size_t axes = 1; axes <= deal.partial_axes(); ++axes) {
    shapes.push_back(shape_of(deal.block(coordinates, axes), inputs));
  }
  for (std::size_t domain = 1; domain < inputs.domains.size(); ++domain) {
    if (!has_gradients_in(inputs, domain)) continue;
    const auto lanes = TRY(lanes_of(domain, inputs.domains, inputs.placements.gradients, inputs.lanes,
                                    coordinates, inputs.pieces));
    for (std::size_t axes = 1; axes <= lanes.deal.partial_axes(); ++axes) {
      shapes.push_back(shape_of(lanes.deal.block(lanes.coordinates, axes), inputs));
    }
  }
  return shapes;
}

std::vector<int> coordinates_at(std::int64_t place, const std::vector<int>& sizes) {
  std::vector<int> coordinates(sizes.size());
  for (std::size_t axis = sizes.size(); axis-- > 0;) {
    coordinates[axis] = static_cast<int>(place % sizes[axis]);
    place /= sizes[axis];
  }
  return coordinates;
}

/// The first coordinate of each kind of slice across `axis`; where slices form blocks of `block` neighbours,
/// of each kind in each kind of block.
std::vector<int> kinds_of_slices(const JobPrograms& job, std::size_t axis, std::size_t block) {
  std::vector<std::vector<int>> slices(static_cast<std::size_t>(job.sizes[axis]));
  for (std::size_t place = 0; place < job.of_place.size(); ++place) {
    const auto at = coordinates_at(static_cast<std::int64_t>(place), job.sizes)[axis];
    slices[static_cast<std::size_t>(at)].push_back(job.of_place[place]);
  }
  std::set<std::vector<std::vector<int>>> blocks;
  std::vector<int> firsts;
  for (std::size_t first = 0; first < slices.size(); first += block) {
    const auto begin = slices.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = slices.begin() + static_cast<std::ptrdiff_t>(std::min(first + block, slices.size()));
    if (!blocks.emplace(begin, end).second) continue;
    std::set<std::vector<int>> seen;
    for (auto slice = begin; slice != end; ++slice) {
      if (seen.insert(*slice).second) firsts.push_back(static_cast<int>(slice - slices.begin()));
    }
  }
  return firsts;
}

/// Groups whose members are neighbours along the innermost axis, as many as an operation has counts.
bool is_of_neighbours(GroupKind kind) {
  return kind == GroupKind::cp || kind == GroupKind::ep;
}

template <class Visit>
void for_each_operation(const JobPrograms& job, const Visit& visit) {
  for (const Program& program : job.programs) {
    for (const OperationRun& run : program.operations) {
      for (const TrainerOperation& one : run.operations) visit(one);
    }
  }
}

/// The axes along which the groups of a kind extend.
std::vector<std::size_t> axes_of(GroupKind kind, const Program& program) {
  for (const Domain& domain : program.domains) {
    for (std::size_t axis = 0; axis < domain.axes.size(); ++axis) {
      if (domain.axes[axis] == kind) return {axis};
    }
  }
  // Groups that gradients are also summed over have members elsewhere in the job, with the same program as
  // the one here; so do tensor-parallel groups.
  if (kind == GroupKind::tp) return {};
  const auto is_summed_over = [kind](const TensorClass& c) {
    return c.also_sum && c.also_sum->group == kind;
  };
  if (std::any_of(program.classes.begin(), program.classes.end(), is_summed_over)) return {};
  std::vector<std::size_t> all(program.coordinates.size());
  for (std::size_t axis = 0; axis < all.size(); ++axis) all[axis] = axis;
  return all;
}

}  // namespace

Result<JobPrograms> plan_all(const ProgramInputs& inputs) {
  JobPrograms job;
  if (inputs.domains.empty()) return fail(Errc::invalid_argument, "a program has at least one domain");
  job.sizes = inputs.domains[0].sizes;
  const auto deal = TRY(deal_of(inputs));
  std::int64_t ranks = 1;
  for (const int size : job.sizes) ranks *= size;
  std::map<std::vector<BlockShape>, int> known;
  for (std::int64_t place = 0; place < ranks; ++place) {
    const auto coordinates = coordinates_at(place, job.sizes);
    auto shapes = TRY(shapes_at(coordinates, deal, inputs));
    const auto [found, is_new] = known.try_emplace(std::move(shapes), static_cast<int>(job.programs.size()));
    if (is_new) job.programs.push_back(TRY(plan_program(inputs, coordinates)));
    job.of_place.push_back(found->second);
  }
  return job;
}

Result<Program> KnownPrograms::plan(const ProgramInputs& inputs, const std::vector<int>& coordinates) {
  const auto has_inputs = [&](const Known& one) { return one.inputs == inputs; };
  auto known = std::find_if(known_.begin(), known_.end(), has_inputs);
  std::optional<Program> planned;
  if (known == known_.end()) {
    planned = TRY(plan_program(inputs, coordinates));
    if (known_.size() == kMostInputs) known_.pop_front();
    auto deal = TRY(deal_of(inputs));
    known_.push_back({inputs, std::move(deal), {}});
    known = std::prev(known_.end());
  }
  auto shapes = TRY(shapes_at(coordinates, known->deal, inputs));
  auto found = known->programs.find(shapes);
  if (found == known->programs.end()) {
    if (!planned) planned = TRY(plan_program(inputs, coordinates));
    found = known->programs.emplace(std::move(shapes), *std::move(planned)).first;
  }
  auto program = found->second;
  program.coordinates = coordinates;
  return program;
}

LaunchedEntries entries_of(const Program& program) {
  std::vector<LaunchedEntry> entries;
  for_each_launch(program, [&](const Launch& launch) {
    entries.push_back({*launch.entry, hash64(common_text(*launch.entry))});
  });
  return std::make_shared<const std::vector<LaunchedEntry>>(std::move(entries));
}

KnownPrograms::Written& KnownPrograms::written(Program program) {
  program.coordinates = {};
  const auto is_same = [&](const Written& one) { return one.program == program; };
  const auto known = std::find_if(written_.begin(), written_.end(), is_same);
  if (known != written_.end()) return *known;
  if (written_.size() == kMostInputs) written_.pop_front();
  auto entries = entries_of(program);
  return written_.emplace_back(Written{std::move(program), std::move(entries), {}});
}

LaunchedEntries KnownPrograms::entries(const Program& program) {
  return written(program).entries;
}

const Lines& KnownPrograms::lines(const Program& program) {
  auto& found = written(program);
  if (found.lines.empty()) found.lines = compared_lines(found.program);
  return found.lines;
}

std::shared_ptr<const Lines> KnownPrograms::share(Lines lines) {
  const auto is_same = [&](const auto& one) { return *one == lines; };
  const auto known = std::find_if(shared_.begin(), shared_.end(), is_same);
  if (known != shared_.end()) return *known;
  if (shared_.size() == kMostInputs) shared_.pop_front();
  return shared_.emplace_back(std::make_shared<const Lines>(std::move(lines)));
}

CheckedJob representatives(const JobPrograms& job) {
  std::map<GroupKind, std::int64_t> kinds, neighbours;
  std::size_t block = 1;
  for_each_operation(job, [&](const TrainerOperation& one) {
    const std::int64_t size = kinds.emplace(one.group, one.counts.members()).first->second;
    if (!is_of_neighbours(one.group)) return;
    neighbours.emplace(one.group, size);
    block = std::max(block, static_cast<std::size_t>(size));
  });
  std::vector<std::vector<int>> chosen;
  std::vector<int> sizes;
  for (std::size_t axis = 0; axis < job.sizes.size(); ++axis) {
    chosen.push_back(kinds_of_slices(job, axis, axis + 1 == job.sizes.size() ? block : 1));
    sizes.push_back(static_cast<int>(chosen.back().size()));
  }
  CheckedJob checked;
  std::int64_t ranks = 1;
  for (const int size : sizes) ranks *= size;
  for (const Program& program : job.programs) {
    for_each_launch(program, [&](const Launch& launch) {
      kinds.emplace(launch.entry->group, launch.entry->counts.members());
    });
  }
  std::map<std::pair<GroupKind, std::vector<int>>, CheckedGroup> groups;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const auto at = coordinates_at(rank, sizes);
    std::vector<int> real;
    std::int64_t place = 0;
    for (std::size_t axis = 0; axis < at.size(); ++axis) {
      real.push_back(chosen[axis][static_cast<std::size_t>(at[axis])]);
      place = place * job.sizes[axis] + real.back();
    }
    const Program& program =
        job.programs[static_cast<std::size_t>(job.of_place[static_cast<std::size_t>(place)])];
    checked.ranks.push_back({fmt::format("the rank at ({})", fmt::join(real, ", ")), &program});
    for (const auto& [kind, size] : kinds) {
      auto key = at;
      if (neighbours.contains(kind)) {
        key.back() = static_cast<int>(real.back() / size);
      } else {
        for (const std::size_t axis : axes_of(kind, program)) key[axis] = 0;
      }
      auto& group = groups[{kind, key}];
      group.kind = kind;
      group.size = size;
      group.members.push_back(static_cast<int>(rank));
    }
  }
  for (auto& [key, group] : groups) checked.groups.push_back(std::move(group));
  return checked;
}

}  // namespace troupe::core
