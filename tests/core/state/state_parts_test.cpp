#include "core/state/state_parts.hpp"
#include "core/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/core/checkpoint/state_samples.hpp"

namespace troupe::core {
namespace {

using testing::HasSubstr;
using List = StateNode::List;
using Map = StateNode::Map;

/// A state as a trainer has one.
StateNode example() {
  return Map{{"model", Map{{"w", tensor("w")}, {"fc1", split_factory("fc1", 2)}, {"extra", object("extra")}}},
             {"optimizer", Map{{"groups", List{Map{{"lr", Value(0.5)}, {"params", LocalLeaf{Value(7)}}},
                                               Map{{"lr", Value(0.25)}, {"params", LocalLeaf{Value(8)}}}}}}},
             {"mixed", List{tensor("m"), Value("plain"), split_factory("f", 3), LocalLeaf{Value("here")}}},
             {"step", Value(3)}};
}

TEST(StateParts, ASaveKeepsTensorsObjectsAndPlainValues) {
  const auto parts = split_for_save(example()).value();

  EXPECT_EQ(keys_of(parts.sharded), (KeySet{"w", "fc1_0", "fc1_1", "extra", "m", "f_0", "f_1", "f_2"}));
  EXPECT_EQ(parts.common,
            Value(Value::Map{{"optimizer", Value::Map{{"groups", Value::List{Value::Map{{"lr", 0.5}},
                                                                             Value::Map{{"lr", 0.25}}}}}},
                             {"mixed", Value::Map{{1, "plain"}}},
                             {"step", 3}}));
}

TEST(StateParts, ALoadBringsTheStateBackInItsForm) {
  const auto saved = split_for_save(example()).value();
  const auto parts = split_for_load(example()).value();

  const auto joined = join_after_load(saved.common, parts.sharded, parts).value();

  TensorLeaf fc1 = tensor("fc1");
  TensorLeaf f = tensor("f");
  fc1.data.buffer = 102;
  f.data.buffer = 103;
  EXPECT_EQ(joined, StateNode(Map{
                        {"model", Map{{"w", tensor("w")}, {"fc1", fc1}, {"extra", object("extra")}}},
                        {"optimizer", Map{{"groups", List{Map{{"lr", Value(0.5)}, {"params", Value(7)}},
                                                          Map{{"lr", Value(0.25)}, {"params", Value(8)}}}}}},
                        {"mixed", List{tensor("m"), Value("plain"), f, Value("here")}},
                        {"step", Value(3)}}));
}

TEST(StateParts, CommonValuesComeFromTheCheckpoint) {
  const auto parts = split_for_load(Map{{"step", Value(0)}, {"w", tensor("w")}}).value();

  const auto joined = join_after_load(Value::Map{{"step", 9}}, parts.sharded, parts).value();

  EXPECT_EQ(joined, StateNode(Map{{"step", Value(9)}, {"w", tensor("w")}}));
}

TEST(StateParts, AnEmptyRequestBringsTheCommonValues) {
  const auto parts = split_for_load(Map{}).value();

  EXPECT_EQ(join_after_load(Value::Map{{"common", 1}}, parts.sharded, parts).value(),
            StateNode(Map{{"common", Value(1)}}));
  EXPECT_EQ(join_after_load(Value(), parts.sharded, parts).value(), StateNode(Map{}));
}

TEST(StateParts, AListWhoseLengthChangedIsNamed) {
  const auto parts = split_for_load(example()).value();
  const Value groups = Value::Map{{"optimizer", Value::Map{{"groups", Value::List{1}}}}};

  EXPECT_THAT(join_after_load(groups, parts.sharded, parts).error().message,
              HasSubstr("different lengths at ('optimizer', 'groups'): 1 and 2"));
}

// Megatron's case: tensors in a list next to a factory of three parts whose merge adds them up.
TEST(StateParts, TensorsAndFactoriesMixInAList) {
  std::vector<std::vector<int>> memory{{1, 2}, {3, 4}, {5, 6}, {7, 8}, {7, 8}, {7, 8}, {0, 0}};
  TensorFactory sum{.source = tensor("sum", {2}, {.buffer = 3}), .build = {}, .merge = {}};
  sum.build = [](const TensorLeaf& source) -> Result<StateNode> {
    Map built;
    for (int i = 0; i < 3; ++i) {
      built.set("part" + std::to_string(i),
                tensor(source.tensor.key + std::to_string(i), {2}, {.buffer = 3 + i}));
    }
    return StateNode(built);
  };
  sum.merge = [&](const TensorLeaf& source, const StateNode& loaded) -> Result<StateNode> {
    for_each_leaf(loaded, [&](const StateNode& leaf) {
      const auto& part = memory.at(static_cast<std::size_t>(leaf.as_tensor()->data.buffer));
      for (std::size_t i = 0; i < part.size(); ++i) memory[6][i] += part[i];
    });
    return StateNode(TensorLeaf{source.tensor, {.buffer = 6}});
  };
  const StateNode request = List{tensor("a", {2}, {.buffer = 0}), sum, tensor("b", {2}, {.buffer = 1}),
                                 tensor("c", {2}, {.buffer = 2})};

  const auto parts = split_for_load(Map{{"list", request}}).value();
  const auto joined = join_after_load(Value(), parts.sharded, parts).value();

  ASSERT_NE(joined.as_map()->find("list"), nullptr);
  ASSERT_NE(joined.as_map()->find("list")->as_list(), nullptr);
  const auto& list = *joined.as_map()->find("list")->as_list();
  ASSERT_EQ(list.size(), 4U);
  ASSERT_NE(list[1].as_tensor(), nullptr);
  EXPECT_EQ(list[1].as_tensor()->data.buffer, 6);
  EXPECT_EQ(memory[6], (std::vector<int>{21, 24}));
}

TEST(StateParts, PartsOfAFactoryThatWereNotLoadedAreNamed) {
  const auto error_of = [](const StateNode& loaded, const StateNode& factories) {
    const auto result = merge_factories(loaded, factories);
    return result ? "no error" : result.error().message;
  };
  const StateNode factory = split_factory("f", 2);

  EXPECT_THAT(error_of(Map{{"b", Value(1)}}, Map{{"a", factory}}), HasSubstr("there is no entry 'a'"));
  EXPECT_THAT(error_of(List{Value(1)}, List{factory, factory}), HasSubstr("a list of 1 items, expected 2"));
  EXPECT_THAT(error_of(List{Value(1)}, Map{{"a", factory}}), HasSubstr("has no item 'a'"));
  EXPECT_THAT(error_of(List{Value(1)}, Map{{1, factory}}), HasSubstr("has no item 1"));
  EXPECT_THAT(error_of(Map{{"x", Value(1)}}, Map{{"x", Map{{"a", factory}}}}),
              HasSubstr("('x',) were not loaded: found a int"));
}

TEST(StateParts, AFactoryThatBuildsItselfIsRefused) {
  TensorFactory endless{.source = tensor("f"), .build = {}, .merge = {}};
  endless.build = [&](const TensorLeaf&) -> Result<StateNode> { return StateNode(endless); };

  EXPECT_THAT(apply_factories(StateNode(endless)).error().message,
              HasSubstr("'f' builds factories more than 8"));
}

TEST(StateParts, AFactoryThatFailsIsReported) {
  TensorFactory broken{.source = tensor("f"), .build = {}, .merge = {}};
  broken.build = [&](const TensorLeaf&) -> Result<StateNode> {
    return fail(Errc::invalid_argument, "odd rows");
  };

  EXPECT_EQ(split_for_save(Map{{"f", broken}}).error().message, "odd rows");
  EXPECT_EQ(split_for_load(Map{{"f", broken}}).error().message, "odd rows");
}

TEST(StateParts, DroppedKeysLeaveEmptyMapsBehind) {
  auto parts = split_for_load(Map{{"a", tensor("a")},
                                  {"UnexpectedNested",
                                   Map{{"UnexpectedTenF", tensor("UnexpectedNested.UnexpectedTenF")}}},
                                  {"list", List{tensor("x"), tensor("y"), object("z")}}})
                   .value();

  drop_keys(parts, {"UnexpectedNested.UnexpectedTenF", "y"});

  EXPECT_EQ(parts.sharded, StateNode(Map{{"a", tensor("a")},
                                         {"UnexpectedNested", Map{}},
                                         {"list", Map{{0, tensor("x")}, {2, object("z")}}}}));
}

TEST(StateParts, AFactoryWithADroppedPartGoesAsAWhole) {
  const StateNode state = Map{{"in", List{split_factory("f", 2), split_factory("g", 2), tensor("t")}},
                              {"fc1", split_factory("fc1", 2)}};
  auto parts = split_for_load(state).value();

  drop_keys(parts, {"f_1", "fc1_0"});
  const auto joined = join_after_load(Value(), parts.sharded, parts).value();

  TensorLeaf g = tensor("g");
  g.data.buffer = 102;
  EXPECT_EQ(keys_of(parts.sharded), (KeySet{"g_0", "g_1", "t"}));
  EXPECT_EQ(joined, StateNode(Map{{"in", Map{{1, g}, {2, tensor("t")}}}}));
}

}  // namespace
}  // namespace troupe::core
