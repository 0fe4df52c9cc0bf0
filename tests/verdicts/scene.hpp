#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/ids.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::tests {

/// What one rank does at one moment that it must not do.
enum class Way : std::uint8_t {
  stops,         ///< SIGSTOP
  loops,         ///< its trainer computes for ever
  exits,         ///< its process ends, with code 0 or another
  counts_wrong,  ///< another number of elements
  other_kind,
  other_dtype,
  other_order,  ///< two operations of different groups change places
  none,
};

/// An operation of every step, in one of the groups.
struct SceneOperation {
  std::size_t group = 0;
  gpu::OperationKind kind = gpu::OperationKind::all_reduce;
  std::size_t elements = 0;  ///< of each member
};

/// A job of a few steps, all of which follows from a seed: the program in which a rank misbehaves and the
/// test that says what the verdict must be.
struct Scene {
  int ranks = 2;
  bool over_tcp = false;
  bool waits_at_once = true;  ///< for each operation before the next is posted
  std::vector<std::pair<std::string, std::vector<std::vector<core::Rank>>>> groups;
  std::vector<SceneOperation> operations;
  int steps = 4;
  // A rank misbehaves in this step, at this operation.
  Way way = Way::none;
  int rank = 0;
  int step = 0;
  std::size_t place = 0;

  /// The part of a group that a rank is in.
  const std::vector<core::Rank>& members(std::size_t group, int of_rank) const {
    for (const auto& part : groups[group].second) {
      for (const core::Rank member : part) {
        if (member.value == of_rank) return part;
      }
    }
    return groups[group].second.front();
  }
  /// The number of an operation among those of its group.
  std::uint64_t number(int of_step, std::size_t of_place) const {
    std::uint64_t before = 0;
    std::uint64_t of_group = 0;
    for (std::size_t i = 0; i < operations.size(); ++i) {
      if (operations[i].group != operations[of_place].group) continue;
      of_group += 1;
      if (i < of_place) before += 1;
    }
    return of_group * static_cast<std::uint64_t>(of_step) + before;
  }
};

inline Scene draw_scene(std::uint64_t seed) {
  using gpu::OperationKind;
  std::mt19937_64 random(seed * 1000003 + 7);
  const auto below = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  Scene scene;
  scene.way = static_cast<Way>(seed % 7);
  scene.over_tcp = seed / 7 % 2 == 1;
  scene.ranks = static_cast<int>(2 + below(3));
  const auto part = [](std::initializer_list<int> ranks) {
    std::vector<core::Rank> members;
    for (const int rank : ranks) members.push_back({rank});
    return members;
  };
  if (scene.ranks == 2) {
    scene.groups = {{"all", {part({0, 1})}}, {"turned", {part({1, 0})}}};
  } else if (scene.ranks == 3) {
    scene.groups = {{"all", {part({0, 1, 2})}}, {"pair", {part({0, 2}), part({1})}}};
  } else {
    scene.groups = {{"all", {part({0, 1, 2, 3})}},
                    {"row", {part({0, 1}), part({2, 3})}},
                    {"column", {part({0, 2}), part({1, 3})}}};
  }
  scene.rank = static_cast<int>(below(static_cast<std::size_t>(scene.ranks)));
  scene.step = static_cast<int>(below(static_cast<std::size_t>(scene.steps)));
  constexpr OperationKind kKinds[] = {OperationKind::all_reduce, OperationKind::all_gather,
                                      OperationKind::broadcast, OperationKind::reduce_scatter,
                                      OperationKind::all_to_all};
  const std::size_t count = 3 + below(4);
  for (std::size_t i = 0; i < count; ++i) {
    // Sizes differ from one operation to the next, so that one in another's place shows.
    const std::size_t elements = (below(8) == 0 ? 70000 : 16) + 4 * i;
    scene.operations.push_back({below(scene.groups.size()), kKinds[below(5)], elements});
  }
  // Where it happens the rank has peers.
  scene.place = below(count);
  auto& group = scene.operations[scene.place].group;
  if (scene.members(group, scene.rank).size() == 1) group = 0;
  if (scene.way == Way::loops) scene.waits_at_once = below(2) == 0;
  if (scene.way == Way::counts_wrong) {
    // A part of an exchange that differs is found too, but between two members alone.
    auto& kind = scene.operations[scene.place].kind;
    if (kind == OperationKind::all_to_all) kind = OperationKind::all_reduce;
  }
  if (scene.way == Way::other_order) {
    // Two groups that share two ranks: each side waits for the other.
    scene.place = below(count - 1);
    const std::size_t other = scene.ranks == 3 && scene.rank == 1 ? 0 : 1;
    if (other == 0) scene.rank = 0;
    scene.operations[scene.place] = {0, OperationKind::all_reduce, 32};
    scene.operations[scene.place + 1] = {1, OperationKind::all_gather, 48};
  }
  return scene;
}

}  // namespace troupe::tests
