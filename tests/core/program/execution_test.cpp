#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "core/dtype.hpp"
#include "core/program/launch_cursor.hpp"
#include "core/program/plan_program.hpp"
#include "core/program/program_text.hpp"

namespace troupe::core {
namespace {

using Values = std::vector<float>;

struct Leaf {
  int lane = 0;
  int piece = 0;
};

/// A number that no order of summation treats alike.
float gradient_of(int unit, Leaf leaf, std::int64_t element) {
  const auto mixed = static_cast<std::uint32_t>(unit * 7919 + leaf.lane * 104729 + leaf.piece * 15485863 +
                                                element * 1299709) *
                     2654435761U;
  return static_cast<float>(static_cast<std::int32_t>(mixed)) * (mixed % 3 == 0 ? 1.7e-3F : 3.1e-7F);
}

float rounded_to(DType wire, float value) {
  return wire == DType::bf16 ? bf16_to_float(float_to_bf16(value)) : value;
}

/// A tree over `count` leaves, by its definition.
template <class LeafOf>
float tree_sum(int first, int width, int count, const LeafOf& leaf) {
  if (width == 1) return leaf(first);
  const int half = width / 2;
  const float left = tree_sum(first, half, count, leaf);
  if (first + half >= count) return left;
  return left + tree_sum(first + half, half, count, leaf);
}

int width_of(int count) {
  int width = 1;
  while (width < count) width *= 2;
  return width;
}

/// The lanes of each piece, then the pieces.
float tree_sum(int unit, int lanes, int pieces, std::int64_t element, DType wire) {
  return tree_sum(0, width_of(pieces), pieces, [&](int piece) {
    return tree_sum(0, width_of(lanes), lanes, [&](int lane) {
      return rounded_to(wire, gradient_of(unit, {lane, piece}, element));
    });
  });
}

/// What a rank holds of a gradient: the sums of these lanes, each over the part of the tensor it has.
struct Held {
  std::vector<LaneRange> lanes;
  std::vector<Values> sums;
};

/// Executes the gradients of ordered programs of all ranks, on the host and without streams.
class Interpreter {
 public:
  Interpreter(const ProgramInputs& inputs, const Mesh& mesh)
      : inputs_(inputs), mesh_(mesh), deal_(deal_of(inputs).value()) {
    for (int r = 0; r < mesh.world().value; ++r) {
      at_.push_back(coordinates_in(inputs.domains[0], mesh, {r}));
      programs_.push_back(plan_program(inputs, at_.back()).value());
      for_each_launch(programs_.back(), [&](const Launch& launch) {
        if (launch.entry->tensor.kind != TensorKind::gradients) return;
        auto& queue = launches_[{r, communicator_of(*launch.entry)}];
        queue.push_back({*launch.entry, launch.round});
        order_[r].push_back(communicator_of(*launch.entry));
      });
    }
  }

  void run() {
    std::map<std::pair<int, Communicator>, std::size_t> next;
    for (bool moved = true; moved;) {
      moved = false;
      for (int r = 0; r < static_cast<int>(programs_.size()); ++r) moved = step(r, next) || moved;
    }
  }

  const Held& gradients(int rank, int unit) { return held_[{rank, unit}]; }
  const std::vector<int>& coordinates(int rank) const { return at_[static_cast<std::size_t>(rank)]; }

 private:
  struct Task {
    ProgramEntry entry;
    int round;
  };

  ElementRange range_of(int unit, const Placements& placements, const std::vector<int>& at) const {
    const auto elements = inputs_.units[unit].tensors[0].elements;
    return part_of({0, elements}, placements, inputs_.domains[0].sizes, at);
  }

  /// The next entry of a rank in the order of its program, when all members of its group have come to it.
  bool step(int rank, std::map<std::pair<int, Communicator>, std::size_t>& next) {
    bool moved = false;
    const auto& order = order_[rank];
    auto& done = done_[rank];
    while (done < order.size()) {
      const auto communicator = order[done];
      const auto members = mesh_.group(communicator.group, {rank});
      const auto place = next[{rank, communicator}];
      for (const Rank member : members) {
        auto& theirs = order_[member.value];
        const auto at = done_[member.value];
        if (at >= theirs.size() || theirs[at] != communicator ||
            next[{member.value, communicator}] != place) {
          return moved;
        }
      }
      execute(members, communicator, place);
      for (const Rank member : members) {
        ++next[{member.value, communicator}];
        ++done_[member.value];
      }
      moved = true;
    }
    return moved;
  }

  void execute(const std::vector<Rank>& members, const Communicator& communicator, std::size_t place) {
    std::vector<Held> inputs;
    const Task& task = launches_[{members[0].value, communicator}][place];
    for (std::size_t m = 0; m < members.size(); ++m) {
      const Task& own = launches_[{members[m].value, communicator}][place];
      inputs.push_back(input_of(members[m].value, own));
      const auto elements = static_cast<std::size_t>(own.entry.elements);
      if (own.entry.operation == CollectiveKind::all_gather) continue;
      ASSERT_EQ(own.entry.counts.of(static_cast<std::int64_t>(m)),
                static_cast<std::int64_t>(inputs.back().sums.size() * elements));
      for (const Values& sum : inputs.back().sums) {
        ASSERT_EQ(sum.size(), elements);
        for (const float value : sum) ASSERT_EQ(rounded_to(own.entry.wire, value), value) << "lossy wire";
      }
    }
    if (task.entry.operation == CollectiveKind::all_gather) {
      gather(members, task, inputs);
    } else {
      exchange(members, task, inputs);
    }
  }

  Held input_of(int rank, const Task& task) {
    const int unit = task.entry.tensor.unit;
    const Placements produced(task.entry.from.size(), Placement::partial);
    if (task.entry.from != produced) return held_[{rank, unit}];
    const auto& at = at_[static_cast<std::size_t>(rank)];
    const bool each_round = deal_.partial_axes() < at.size();
    const LaneRange lanes =
        each_round ? deal_.round_lanes(at, at.size(), task.round) : deal_.block(at, at.size());
    const int piece = at.back() % inputs_.pieces.of_lane;
    Held held;
    for (const LaneRange& root : subtree_roots(lanes, inputs_.lanes))
      held = appended(held, sum_of(unit, root, piece));
    return held;
  }

  /// One subtree root, summed lane by lane as lane_slot and merge_after say.
  Held sum_of(int unit, LaneRange root, int piece) const {
    const auto& tensor = inputs_.units[unit].tensors[0];
    const DType wire = inputs_.classes[tensor.tensor_class].wire;
    std::vector<Values> slots;
    for (int lane = root.first; lane < root.end(); ++lane) {
      Values values;
      for (std::int64_t e = 0; e < tensor.elements; ++e) {
        values.push_back(rounded_to(wire, gradient_of(unit, {lane, piece}, e)));
      }
      slots.push_back(std::move(values));
      for (const TreeStep& add : merge_after({lane}, root, inputs_.lanes)) {
        auto& destination = slots[static_cast<std::size_t>(add.destination)];
        for (std::size_t e = 0; e < destination.size(); ++e) {
          destination[e] += slots[static_cast<std::size_t>(add.source)][e];
        }
        slots.pop_back();
      }
    }
    EXPECT_EQ(slots.size(), 1U);
    return {{deal_.tree().leaves_of(root, piece)}, {std::move(slots[0])}};
  }

  static Held appended(Held held, const Held& more) {
    held.lanes.insert(held.lanes.end(), more.lanes.begin(), more.lanes.end());
    held.sums.insert(held.sums.end(), more.sums.begin(), more.sums.end());
    return held;
  }

  Held merged(const Held& held) const {
    const auto [order, merge, roots] = sort_and_merge(held.lanes, deal_.tree());
    std::vector<Values> slots;
    for (const int place : order) slots.push_back(held.sums[static_cast<std::size_t>(place)]);
    for (const TreeStep& add : merge.steps) {
      auto& destination = slots[static_cast<std::size_t>(add.destination)];
      const auto& source = slots[static_cast<std::size_t>(add.source)];
      for (std::size_t e = 0; e < destination.size(); ++e) destination[e] += source[e];
    }
    Held result{roots, {}};
    for (const int root : merge.roots) result.sums.push_back(slots[static_cast<std::size_t>(root)]);
    return result;
  }

  void exchange(const std::vector<Rank>& members, const Task& task, const std::vector<Held>& inputs) {
    const int unit = task.entry.tensor.unit;
    for (const Rank receiver : members) {
      const auto& at = at_[static_cast<std::size_t>(receiver.value)];
      const ElementRange whole = range_of(unit, task.entry.from, at);
      const ElementRange part = range_of(unit, task.entry.to, at);
      Held arrived;
      for (const Held& input : inputs) {
        Held slice = input;
        for (Values& sum : slice.sums) {
          sum = Values(sum.begin() + (part.start - whole.start), sum.begin() + (part.end - whole.start));
        }
        arrived = appended(arrived, slice);
      }
      Held& own = held_[{receiver.value, unit}];
      const bool stays = task.entry.to == inputs_.placements.gradients && task.entry.from != task.entry.to &&
                         deal_.partial_axes() < at.size();
      own = merged(stays ? appended(own, arrived) : arrived);
    }
  }

  void gather(const std::vector<Rank>& members, const Task& task, const std::vector<Held>& inputs) {
    Held all{{inputs[0].lanes}, {{}}};
    for (std::size_t m = 0; m < members.size(); ++m) {
      ASSERT_EQ(inputs[m].sums.size(), 1U) << "only finished sums are gathered";
      ASSERT_EQ(task.entry.counts.of(static_cast<std::int64_t>(m)),
                static_cast<std::int64_t>(inputs[m].sums[0].size()));
      all.sums[0].insert(all.sums[0].end(), inputs[m].sums[0].begin(), inputs[m].sums[0].end());
    }
    for (const Rank member : members) held_[{member.value, task.entry.tensor.unit}] = all;
  }

  const ProgramInputs& inputs_;
  const Mesh& mesh_;
  LaneDeal deal_;
  std::vector<std::vector<int>> at_;
  std::vector<Program> programs_;
  std::map<std::pair<int, Communicator>, std::vector<Task>> launches_;
  std::map<int, std::vector<Communicator>> order_;
  std::map<int, std::size_t> done_;
  std::map<std::pair<int, int>, Held> held_;
};

/// Every rank must end with its part of the sum over one tree, whatever the strategy, the mesh and the wire.
void expect_one_tree(Strategy strategy, int outer, int inner, int lanes, DType wire, int pieces = 1) {
  const Mesh mesh = Mesh::create({.cp = pieces, .dp = outer * inner, .optimizer_instances = outer}).value();
  auto inputs = inputs_of(strategy, mesh).value();
  inputs.numerics = Numerics::ordered;
  inputs.lanes = lanes;
  inputs.classes = {{.wire = wire}};
  for (const int rows : {1, 3}) {
    inputs.units.push_back({.tensors = {{.elements = std::int64_t{rows} * outer * inner * pieces}}});
  }

  Interpreter interpreter(inputs, mesh);
  interpreter.run();

  for (int rank = 0; rank < outer * inner * pieces; ++rank) {
    for (int unit = 0; unit < 2; ++unit) {
      const auto elements = inputs.units[unit].tensors[0].elements;
      const ElementRange part = part_of({0, elements}, inputs.placements.optimizer, inputs.domains[0].sizes,
                                        interpreter.coordinates(rank));
      Values expected;
      for (auto e = part.start; e < part.end; ++e) expected.push_back(tree_sum(unit, lanes, pieces, e, wire));
      const Held& held = interpreter.gradients(rank, unit);
      ASSERT_EQ(held.sums.size(), 1U) << "the tree is finished";
      ASSERT_EQ(held.sums[0], expected)
          << "rank " << rank << " of " << outer << "x" << inner << ", " << name_of(strategy) << ", " << lanes
          << " lanes of " << pieces << " pieces";
    }
  }
}

TEST(ProgramExecution, EightLanesGiveTheSameBitsOnEveryMesh) {
  for (const auto wire : {DType::f32, DType::bf16}) {
    for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
      for (const int ranks : {1, 2, 3, 4, 8}) expect_one_tree(strategy, 1, ranks, 8, wire);
    }
    for (const auto strategy : {Strategy::hsdp, Strategy::hfsdp, Strategy::zero1, Strategy::zero2}) {
      for (const auto& [outer, inner] : {std::pair{1, 2}, {2, 1}, {2, 2}, {4, 2}, {2, 4}}) {
        expect_one_tree(strategy, outer, inner, 8, wire);
      }
    }
  }
}

TEST(ProgramExecution, LanesOfSeveralPiecesGiveTheSameBitsEverywhere) {
  for (const int pieces : {2, 3, 4}) {
    for (const int lanes : {4, 5, 8}) {
      for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
        for (const int ranks : {1, 2, 3, 4}) {
          expect_one_tree(strategy, 1, ranks, lanes, DType::bf16, pieces);
        }
      }
      for (const auto strategy : {Strategy::hsdp, Strategy::hfsdp, Strategy::zero1, Strategy::zero2}) {
        for (const auto& [outer, inner] : {std::pair{1, 2}, {2, 1}, {2, 2}, {4, 1}}) {
          expect_one_tree(strategy, outer, inner, lanes, DType::bf16, pieces);
        }
      }
    }
  }
}

RC_GTEST_PROP(ProgramExecution, AnyNumberOfLanesGivesTheSameBits, ()) {
  const auto strategy = *rc::gen::element(Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3,
                                          Strategy::hsdp, Strategy::hfsdp);
  const int outer = strategy == Strategy::ddp ? 1 : *rc::gen::inRange(1, 5);
  const int inner = *rc::gen::inRange(1, 6);
  const int lanes = outer * inner + *rc::gen::inRange(0, 30);

  expect_one_tree(strategy, outer, inner, lanes, *rc::gen::element(DType::f32, DType::bf16),
                  *rc::gen::inRange(1, 5));

  RC_ASSERT(!testing::Test::HasFailure());
}

}  // namespace
}  // namespace troupe::core
