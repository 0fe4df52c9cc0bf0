#include "actors/launch/node_table.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {
namespace {

using testing::HasSubstr;

LauncherHello hello_of(const std::string& host, int node, int ranks) {
  LauncherHello hello;
  hello.version = "1";
  hello.host = host;
  hello.node = node;
  hello.ranks = ranks;
  hello.fewest_ranks = 1;
  hello.settings = {{"--nnodes", "3"}, {"--rdzv-id", "run"}};
  return hello;
}

TEST(NodeTable, GivesUnnumberedNodesFreeNumbersInOrderOfArrival) {
  NodeTable table(3, 3, hello_of("a", 0, 2), "10.0.0.1");
  ASSERT_TRUE(table.add(hello_of("b", -1, 3), "10.0.0.2"));
  ASSERT_TRUE(table.add(hello_of("c", 1, 1), "10.0.0.3"));
  ASSERT_TRUE(table.is_complete());

  table.assign();

  EXPECT_EQ(table.members()[1].hello.host, "c");
  EXPECT_EQ(table.members()[1].first_slot, 2);
  EXPECT_EQ(table.members()[2].hello.host, "b");
  EXPECT_EQ(table.members()[2].first_slot, 3);
  EXPECT_EQ(table.world(), 6);
}

TEST(NodeTable, IsEnoughWithTheFewestAndGrowsLater) {
  auto first = hello_of("a", 0, 2);
  first.spares = 1;
  NodeTable table(3, 1, first, "10.0.0.1");
  EXPECT_TRUE(table.is_enough());
  EXPECT_EQ(table.waiting(), "waiting for up to 2 more of 3 nodes; here is a (node 0)");
  table.assign();

  ASSERT_TRUE(table.add(hello_of("c", 2, 2), "10.0.0.3"));
  table.assign();

  EXPECT_EQ(table.members()[1].node, 1) << "in the order in which they come";
  EXPECT_EQ(table.members()[1].first_slot, 3);
  EXPECT_EQ(table.fewest_ranks(), 1);
  EXPECT_FALSE(table.is_complete());
}

TEST(NodeTable, NumbersTheNodesThatComeBackWithoutGaps) {
  NodeTable table(4, 2, hello_of("a", 0, 2), "10.0.0.1");
  for (const auto& [host, node] : {std::pair{"d", 3}, {"c", 2}, {"e", 2}}) {
    auto back = hello_of(host, node, 2);
    back.job = "job_1";
    ASSERT_TRUE(table.add(back, "10.0.0.2"));
  }

  table.remove(1);
  table.assign();

  std::vector<std::string> names;
  for (const auto& member : table.members()) names.push_back(name_of(member));
  EXPECT_THAT(names, testing::ElementsAre("a (node 0)", "e (node 1)", "c (node 2)"));
  EXPECT_EQ(table.members()[2].first_slot, 4);
}

/// Launchers come, leave and come back, before the job begins and later: nodes are 0 to size - 1, in this
/// order, and each has the slots after those of the one before.
TEST(NodeTable, KeepsNodesInOrderWhoeverComesBack) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
    const int nodes = 2 + below(5), fewest = 1 + below(nodes);
    NodeTable table(nodes, fewest, hello_of("n0", 0, 1 + below(3)), "10.0.0.1");
    std::vector<int> here;
    bool has_begun = false;
    for (int turn = 0; turn < 20; ++turn) {
      if (!has_begun && !here.empty() && below(4) == 0) {
        table.remove(here.back());
        here.pop_back();
      } else {
        auto hello = hello_of(fmt::format("n{}", turn), below(nodes + 1) - 1, 1 + below(3));
        hello.settings = table.members().front().hello.settings;
        if (below(2) == 0) hello.job = "job";
        if (const auto added = table.add(std::move(hello), "10.0.0.2")) here.push_back(*added);
      }
      const bool begins = table.is_complete() || (table.may_change() && table.is_enough() && below(3) == 0);
      has_begun = has_begun || begins;
      if (!has_begun) continue;
      table.assign();
      int slot = 0;
      for (int node = 0; node < table.size(); ++node) {
        const auto& member = table.members()[static_cast<std::size_t>(node)];
        ASSERT_EQ(member.node, node) << "seed " << seed << ": " << table.present();
        ASSERT_EQ(member.first_slot, slot) << "seed " << seed;
        slot += member.hello.ranks;
      }
      ASSERT_EQ(table.members().front().hello.host, "n0") << "seed " << seed;
    }
  }
}

TEST(NodeTable, NamesWhoHasANodeRankAlready) {
  NodeTable table(3, 3, hello_of("a", 0, 2), "10.0.0.1");
  ASSERT_TRUE(table.add(hello_of("b", 1, 2), "10.0.0.2"));

  for (const int node : {0, 1}) {
    const auto again = table.add(hello_of("c", node, 2), "10.0.0.3");
    ASSERT_FALSE(again);
    EXPECT_THAT(again.error().message, HasSubstr(node == 0 ? "a at 10.0.0.1" : "b at 10.0.0.2"));
  }
  EXPECT_EQ(table.waiting(), "waiting for 1 of 3 nodes; here are a (node 0), b (node 1)");
}

TEST(NodeTable, TakesNobodyBeyondItsNumber) {
  NodeTable table(2, 2, hello_of("a", 0, 2), "10.0.0.1");
  ASSERT_TRUE(table.add(hello_of("b", -1, 2), "10.0.0.2"));

  const auto third = table.add(hello_of("c", -1, 2), "10.0.0.3");

  ASSERT_FALSE(third);
  EXPECT_THAT(third.error().message, HasSubstr("c is one too many"));
}

}  // namespace
}  // namespace troupe::actors
