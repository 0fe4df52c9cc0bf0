#include "core/state/state_dict.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/core/checkpoint/state_samples.hpp"

namespace troupe::core {
namespace {

using testing::HasSubstr;
using List = StateNode::List;
using Map = StateNode::Map;

bool is_tensor(const StateNode& leaf) {
  return leaf.as_tensor() != nullptr;
}

TEST(StateDict, MapsAndListsInAValueBecomeNodes) {
  const StateNode state =
      Value(Value::Map{{"a", Value::List{1, Value::Map{{7, 2}}}}, {"t", Value::tuple({1})}});

  EXPECT_EQ(state,
            StateNode(Map{{"a", List{Value(1), Map{{7, Value(2)}}}}, {"t", Value(Value::tuple({1}))}}));
  EXPECT_EQ(state.type_name(), "map");
  ASSERT_NE(state.as_map()->find("t"), nullptr);
  EXPECT_EQ(state.as_map()->find("t")->type_name(), "tuple");
}

TEST(StateDict, ExtractingSplitsByLeaves) {
  const StateNode state = Map{{"model", Map{{"w", tensor("w")}, {"name", Value("x")}}}, {"step", Value(3)}};

  const auto [matching, rest] = extract(state, is_tensor);

  EXPECT_EQ(matching, StateNode(Map{{"model", Map{{"w", tensor("w")}}}}));
  EXPECT_EQ(rest, StateNode(Map{{"model", Map{{"name", Value("x")}}}, {"step", Value(3)}}));
}

TEST(StateDict, EmptyMapsAndListsGoToTheRest) {
  const StateNode state = Map{{"none", Map{}}, {"inner", Map{{"empty", List{}}}}, {"w", tensor("w")}};

  const auto [matching, rest] = extract(state, is_tensor);

  EXPECT_EQ(matching, StateNode(Map{{"w", tensor("w")}}));
  EXPECT_EQ(rest, StateNode(Map{{"none", Map{}}, {"inner", Map{{"empty", List{}}}}}));
}

TEST(StateDict, PartsOfAListKeepTheirIndices) {
  const StateNode state = Map{{"mixed", List{tensor("a"), Value(1), tensor("b")}},
                              {"pure", List{Value(1), Value(2)}},
                              {"deep", List{Map{{"w", tensor("c")}, {"v", Value(1)}}}}};

  const auto [matching, rest] = extract(state, is_tensor);

  EXPECT_EQ(matching, StateNode(Map{{"mixed", Map{{0, tensor("a")}, {2, tensor("b")}}},
                                    {"deep", List{Map{{"w", tensor("c")}}}}}));
  EXPECT_EQ(rest, StateNode(Map{{"mixed", Map{{1, Value(1)}}},
                                {"pure", List{Value(1), Value(2)}},
                                {"deep", List{Map{{"v", Value(1)}}}}}));
}

TEST(StateDict, APartOfAListMergesIntoTheList) {
  StateNode list = List{Map{{"lr", Value(1)}}, Map{{"lr", Value(2)}}};
  StateNode part = Map{{1, Map{{"params", Value(7)}}}};
  const StateNode both = List{Map{{"lr", Value(1)}}, Map{{"lr", Value(2)}, {"params", Value(7)}}};
  StateNode other = part;

  EXPECT_TRUE(merge(other, list));
  EXPECT_TRUE(merge(list, part));

  EXPECT_EQ(list, both);
  EXPECT_EQ(other, both);
}

TEST(StateDict, AConflictNamesItsPlaceAndChangesNothing) {
  const StateNode before = Map{{"a", List{Value(1), tensor("w")}}};
  const auto error_of = [&](const StateNode& from) {
    StateNode into = before;
    const auto result = merge(into, from);
    EXPECT_EQ(into, before);
    return result ? "no error" : result.error().message;
  };

  EXPECT_THAT(error_of(Map{{"new", Value(1)}, {"a", List{Value(1), Value(2)}}}), HasSubstr("('a', 0)"));
  EXPECT_THAT(error_of(Map{{"new", Value(1)}, {"a", List{}}}),
              HasSubstr("different lengths at ('a',): 2 and 0"));
  EXPECT_THAT(error_of(Map{{"a", Map{{1, tensor("v")}}}}),
              HasSubstr("('a', 1): both sides have a value there, of type tensor and tensor"));
  EXPECT_THAT(error_of(Map{{"a", Map{{2, Value(1)}}}}),
              HasSubstr("at ('a',): there is a list of 2 items and a map with the key 2"));
  EXPECT_THAT(error_of(Map{{"a", Map{{"x", Value(1)}}}}), HasSubstr("the key 'x'"));
}

TEST(StateDict, AMapOfNothingThatWasAListIsAnEmptyList) {
  EXPECT_EQ(restore_lists(Map{{"a", Map{}}}, Map{{"a", List{Value()}}}), StateNode(Map{{"a", List{}}}));
}

TEST(StateDict, MapsOfAllIndicesBecomeListsAgain) {
  const StateNode like =
      Map{{"full", List{Value(), Value()}}, {"some", List{Value(), Value()}}, {"map", Map{}}};
  const StateNode state = Map{
      {"full", Map{{1, Value(1)}, {0, Value(0)}}}, {"some", Map{{1, Value(1)}}}, {"map", Map{{0, Value(1)}}}};

  EXPECT_EQ(restore_lists(state, like), StateNode(Map{{"full", List{Value(0), Value(1)}},
                                                      {"some", Map{{1, Value(1)}}},
                                                      {"map", Map{{0, Value(1)}}}}));
}

StateNode any_state(int levels) {
  const int kind = *rc::gen::inRange(0, levels > 0 ? 6 : 3);
  if (kind == 0) return tensor("t" + std::to_string(*rc::gen::inRange(0, 100)));
  if (kind == 1) return Value(*rc::gen::inRange(0, 100));
  if (kind == 2) return object("o");
  List items;
  Map map;
  for (int i = *rc::gen::inRange(0, 4); i > 0; --i) {
    items.push_back(any_state(levels - 1));
    map.set("k" + std::to_string(i), items.back());
  }
  return kind == 3 ? StateNode(items) : StateNode(map);
}

RC_GTEST_PROP(StateDict, WhatWasSplitMergesToWhatItWas, ()) {
  const StateNode state = Map{{"root", any_state(4)}};

  auto parts = extract(state, is_tensor);
  RC_ASSERT(merge(parts.rest, parts.matching).has_value());

  RC_ASSERT(restore_lists(parts.rest, state) == state);
}

TEST(StateDict, DifferencesNameTypesOfLeaves) {
  const StateNode left = Map{{"w", tensor("w")}, {"v", tensor("v", {4})}, {"x", Value(1)}};
  const StateNode right = Map{{"v", tensor("v", {5})}, {"w", object("w")}, {"y", LocalLeaf{Value(1)}}};

  EXPECT_EQ(to_string(diff(left, right)),
            "only left: [('x',)], only right: [('y',)], mismatches: [(('w',), tensor, object), (('v',), "
            "tensor, tensor)]");
  EXPECT_TRUE(diff(left, left).empty());
}

TEST(StateDict, PrefixesApplyToTensorsObjectsAndFactories) {
  StateNode state = Map{{"a", List{tensor("w"), object("o"), Value("w")}}, {"f", split_factory("f", 2)}};

  add_prefix(state, "model.");

  EXPECT_EQ(keys_of(state), (KeySet{"model.w", "model.o", "model.f"}));
  ASSERT_TRUE(replace_prefix(state, "model.", "m."));
  EXPECT_EQ(keys_of(state), (KeySet{"m.w", "m.o", "m.f"}));
}

TEST(StateDict, AKeyWithoutThePrefixIsNamedAndNothingChanges) {
  StateNode state = Map{{"a", tensor("model.w")}, {"b", tensor("other.w")}};

  const auto result = replace_prefix(state, "model.", "m.");

  EXPECT_THAT(result.error().message, HasSubstr("'other.w' does not begin with 'model.'"));
  EXPECT_EQ(keys_of(state), (KeySet{"model.w", "other.w"}));
}

TEST(StateDict, OfSeveralPrefixesTheFirstThatFitsWins) {
  StateNode state = Map{{"a", tensor("layers.0.w")}, {"b", tensor("layers.w")}, {"c", tensor("head.w")}};
  const std::vector<std::pair<std::string, std::string>> prefixes{{"layers.0.", "first."},
                                                                  {"layers.", "all."}};

  map_prefixes(state, prefixes);

  EXPECT_EQ(keys_of(state), (KeySet{"first.w", "all.w", "head.w"}));
}

TEST(StateDict, OnlyPlainValuesBecomeAValue) {
  const StateNode plain = Map{{"a", List{Value(1)}}};

  EXPECT_EQ(to_value(plain).value(), Value(Value::Map{{"a", Value::List{1}}}));
  EXPECT_THAT(to_value(Map{{"a", List{tensor("w")}}}).error().message,
              HasSubstr("there is a tensor at ('a', 0)"));
}

}  // namespace
}  // namespace troupe::core
