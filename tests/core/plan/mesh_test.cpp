#include "core/plan/mesh.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace troupe::core {
namespace {

using Groups = std::vector<std::vector<Rank>>;

Mesh mesh_of(const MeshSizes& sizes) {
  return Mesh::create(sizes).value();
}

std::vector<Rank> ranks(const std::vector<int>& values) {
  std::vector<Rank> result;
  for (const int value : values) result.push_back({value});
  return result;
}

Groups groups_of(const std::vector<std::vector<int>>& values) {
  Groups result;
  for (const auto& group : values) result.push_back(ranks(group));
  return result;
}

// The example of Megatron-LM's documentation: 16 ranks, tp 2, pp 4.
TEST(Mesh, GroupsSixteenRanksInTensorHalvesAndStages) {
  const Mesh mesh = mesh_of({.tp = 2, .dp = 2, .pp = 4});

  EXPECT_EQ(mesh.world(), WorldSize{16});
  EXPECT_EQ(mesh.groups(GroupKind::tp),
            groups_of({{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}}));
  EXPECT_EQ(mesh.groups(GroupKind::dp),
            groups_of({{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(mesh.groups(GroupKind::pp),
            groups_of({{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}));
  EXPECT_EQ(mesh.groups(GroupKind::embd), groups_of({{0, 12}, {1, 13}, {2, 14}, {3, 15}}));
  EXPECT_EQ(mesh.groups(GroupKind::pos_embd), groups_of({{0}, {1}, {2}, {3}}));
  EXPECT_EQ(mesh.group(GroupKind::tp_pp, Rank{5}), ranks({0, 1, 4, 5, 8, 9, 12, 13}));
  EXPECT_EQ(mesh.group(GroupKind::tp_dp_cp, Rank{5}), ranks({4, 5, 6, 7}));
}

TEST(Mesh, EmbeddingGroupsLeaveTheMiddleStagesOut) {
  const Mesh mesh = mesh_of({.tp = 2, .dp = 2, .pp = 4});

  EXPECT_TRUE(mesh.group(GroupKind::embd, Rank{4}).empty());
  EXPECT_TRUE(mesh.group(GroupKind::pos_embd, Rank{12}).empty());
  EXPECT_EQ(mesh.group(GroupKind::embd, Rank{13}), ranks({1, 13}));
  EXPECT_EQ(mesh_of({.dp = 2}).group(GroupKind::embd, Rank{1}), ranks({1}));
}

TEST(Mesh, ContextParallelRanksStandBetweenTensorAndData) {
  const Mesh mesh = mesh_of({.tp = 2, .cp = 2, .dp = 2});

  EXPECT_EQ(mesh.groups(GroupKind::cp), groups_of({{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(mesh.groups(GroupKind::dp), groups_of({{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(mesh.groups(GroupKind::dp_cp), groups_of({{0, 2, 4, 6}, {1, 3, 5, 7}}));
}

// Covers reduce-11.
TEST(Mesh, ExpertsFoldDataAndContextRanks) {
  const Mesh mesh = mesh_of({.tp = 2, .ep = 2, .dp = 4});

  EXPECT_EQ(mesh.edp(), 2);
  EXPECT_EQ(mesh.groups(GroupKind::etp), groups_of({{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(mesh.groups(GroupKind::ep), groups_of({{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(mesh.groups(GroupKind::edp), groups_of({{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(Mesh, ExpertTensorParallelismMayDiffer) {
  const Mesh mesh = mesh_of({.tp = 2, .ep = 4, .dp = 4, .etp = 1});

  EXPECT_EQ(mesh.edp(), 2);
  EXPECT_EQ(mesh.groups(GroupKind::ep), groups_of({{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(mesh.groups(GroupKind::edp), groups_of({{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(mesh.groups(GroupKind::etp).size(), 8U);
}

TEST(Mesh, OptimizerInstancesAreContiguousChunks) {
  const Mesh mesh = mesh_of({.tp = 2, .ep = 2, .dp = 4, .optimizer_instances = 2});

  EXPECT_EQ(mesh.groups(GroupKind::intra_dp_cp), groups_of({{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(mesh.groups(GroupKind::inter_instance), groups_of({{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(mesh.groups(GroupKind::intra_edp).size(), 8U);
}

TEST(Mesh, OtherOrdersNumberOtherwise) {
  const Mesh mesh = Mesh::create({.tp = 2, .dp = 2, .pp = 2}, "pp-dp-tp-cp-ep").value();

  EXPECT_EQ(mesh.group(GroupKind::pp, Rank{2}), ranks({2, 3}));
  EXPECT_EQ(mesh.group(GroupKind::dp, Rank{1}), ranks({1, 3}));
  EXPECT_EQ(mesh.group(GroupKind::tp, Rank{1}), ranks({1, 5}));
}

/// The coordinates of a rank by repeated division, for comparison with strides.
std::map<std::string, int> coordinates(int rank, const std::vector<std::pair<std::string, int>>& axes) {
  std::map<std::string, int> result;
  for (const auto& [name, size] : axes) {
    result[name] = rank % size;
    rank /= size;
  }
  return result;
}

RC_GTEST_PROP(Mesh, MembersOfAGroupAgreeInAllOtherCoordinates, ()) {
  MeshSizes sizes;
  const auto small = rc::gen::inRange(1, 4);
  sizes.tp = *small;
  sizes.cp = *small;
  sizes.dp = *small * 2;
  sizes.pp = *small;
  sizes.ep = *rc::gen::element(1, 2, sizes.dp);
  const Mesh mesh = mesh_of(sizes);
  const std::vector<std::pair<std::string, int>> dense{
      {"tp", sizes.tp}, {"cp", sizes.cp}, {"dp", sizes.dp}, {"pp", sizes.pp}};
  const std::vector<std::pair<std::string, int>> expert{
      {"tp", sizes.tp}, {"ep", sizes.ep}, {"dp", mesh.edp()}, {"pp", sizes.pp}};
  struct Case {
    GroupKind kind;
    const std::vector<std::pair<std::string, int>>& axes;
    std::set<std::string> varied;
  };
  const std::vector<Case> cases{
      {GroupKind::world, dense, {"tp", "cp", "dp", "pp"}},
      {GroupKind::tp, dense, {"tp"}},
      {GroupKind::cp, dense, {"cp"}},
      {GroupKind::dp, dense, {"dp"}},
      {GroupKind::pp, dense, {"pp"}},
      {GroupKind::dp_cp, dense, {"dp", "cp"}},
      {GroupKind::tp_pp, dense, {"tp", "pp"}},
      {GroupKind::tp_dp_cp, dense, {"tp", "dp", "cp"}},
      {GroupKind::etp, expert, {"tp"}},
      {GroupKind::ep, expert, {"ep"}},
      {GroupKind::edp, expert, {"dp"}},
  };

  for (const auto& [kind, axes, varied] : cases) {
    for (int rank = 0; rank < mesh.world().value; ++rank) {
      auto own = coordinates(rank, axes);
      std::vector<Rank> expected;
      for (int other = 0; other < mesh.world().value; ++other) {
        auto theirs = coordinates(other, axes);
        for (const auto& axis : varied) theirs[axis] = own[axis];
        if (theirs == own) expected.push_back({other});
      }
      RC_ASSERT(mesh.group(kind, {rank}) == expected);
    }
  }
}

RC_GTEST_PROP(Mesh, InstanceGroupsSuitDenseParametersAndExpertsAlike, ()) {
  MeshSizes sizes;
  sizes.optimizer_instances = *rc::gen::inRange(1, 4);
  sizes.tp = *rc::gen::inRange(1, 4);
  sizes.cp = *rc::gen::inRange(1, 3);
  sizes.ep = *rc::gen::inRange(1, 3);
  sizes.dp = sizes.optimizer_instances * sizes.ep * *rc::gen::inRange(1, 3);
  const Mesh mesh = mesh_of(sizes);

  for (int rank = 0; rank < mesh.world().value; ++rank) {
    // The same place in every chunk of dp_cp.
    const auto all = mesh.group(GroupKind::dp_cp, {rank});
    const auto chunk = mesh.group(GroupKind::intra_dp_cp, {rank});
    std::vector<Rank> expected;
    std::size_t place = 0;
    while (chunk[place].value != rank) ++place;
    for (std::size_t i = place; i < all.size(); i += chunk.size()) expected.push_back(all[i]);
    RC_ASSERT(mesh.group(GroupKind::inter_instance, {rank}) == expected);
    RC_ASSERT(mesh.group_size(GroupKind::intra_edp) * sizes.optimizer_instances == mesh.edp());
  }
}

RC_GTEST_PROP(Mesh, PlacesAndFirstRanksAreThoseOfTheGroup, ()) {
  const std::vector<std::string> orders{std::string(Mesh::kDefaultOrder), "pp-dp-ep-cp-tp", "dp-tp-cp-ep-pp"};
  MeshSizes sizes;
  sizes.optimizer_instances = *rc::gen::inRange(1, 4);
  sizes.tp = *rc::gen::inRange(1, 4);
  sizes.cp = *rc::gen::inRange(1, 3);
  sizes.ep = *rc::gen::inRange(1, 3);
  sizes.dp = sizes.optimizer_instances * sizes.ep * *rc::gen::inRange(1, 3);
  sizes.pp = *rc::gen::inRange(1, 4);
  const auto mesh = Mesh::create(sizes, *rc::gen::elementOf(orders));
  RC_PRE(mesh.has_value());

  for (std::size_t kind = 0; kind < kGroupKinds; ++kind) {
    const auto group = static_cast<GroupKind>(kind);
    for (int rank = 0; rank < mesh->world().value; ++rank) {
      const auto members = mesh->group(group, {rank});
      RC_ASSERT(std::is_sorted(members.begin(), members.end()));
      if (members.empty()) continue;
      RC_ASSERT(mesh->first_of_group(group, {rank}) == members.front());
      RC_ASSERT(members[static_cast<std::size_t>(mesh->place_in_group(group, {rank}))] == Rank{rank});
    }
    RC_ASSERT(mesh->group_size(group) == static_cast<int>(mesh->group(group, {0}).size()));
  }
}

TEST(Mesh, WrongSizesAreErrorsThatNameTheAxis) {
  const auto message = [](const MeshSizes& sizes) { return Mesh::create(sizes).error().message; };

  EXPECT_EQ(message({.tp = 0}), "the size of axis tp is 1 to 1048576, not 0");
  EXPECT_EQ(message({.tp = 2, .ep = 3, .dp = 2}),
            "tp * cp * dp = 4 is not divisible by etp * ep = 6; change one of these sizes");
  EXPECT_EQ(message({.dp = 4, .optimizer_instances = 3}),
            "dp * cp = 4 is not divisible by optimizer_instances = 3; change one of these sizes");
  EXPECT_EQ(message({.ep = 4, .dp = 4, .optimizer_instances = 2}),
            "edp = 1 is not divisible by optimizer_instances = 2; change one of these sizes");
  EXPECT_EQ(message({.tp = 1024, .cp = 1024, .dp = 1024}),
            "tp 1024 * cp 1024 * dp 1024 * pp 1 are more than 1048576 ranks");
}

TEST(Mesh, WrongOrdersAreErrors) {
  EXPECT_FALSE(Mesh::create({}, "tp-cp-ep-dp"));
  EXPECT_FALSE(Mesh::create({}, "tp-cp-ep-dp-dp"));
  EXPECT_FALSE(Mesh::create({}, "tp-cp-ep-dp-xx"));
  EXPECT_FALSE(Mesh::create({}, "tp-cp-ep-dp-pp-tp"));
  EXPECT_FALSE(Mesh::create({}, ""));
  EXPECT_TRUE(Mesh::create({}, "pp-dp-ep-cp-tp"));

  const auto split_stages = Mesh::create({.tp = 2, .ep = 2, .dp = 2, .pp = 2, .etp = 1}, "tp-pp-cp-ep-dp");

  ASSERT_FALSE(split_stages);
  EXPECT_NE(split_stages.error().message.find("put pp last"), std::string::npos);
}

}  // namespace
}  // namespace troupe::core
