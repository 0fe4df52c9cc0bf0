#include "core/models/tensor_dict.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <span>

namespace troupe::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

HostTensor ints(Shape shape, const std::vector<std::int64_t>& values) {
  HostTensor tensor{DType::i64, std::move(shape), std::vector<std::byte>(values.size() * 8)};
  std::ranges::copy(std::as_bytes(std::span(values)), tensor.bytes.begin());
  return tensor;
}

std::vector<std::int64_t> values_of(const HostTensor& tensor) {
  std::vector<std::int64_t> values(tensor.bytes.size() / 8);
  std::ranges::copy(tensor.bytes, std::as_writable_bytes(std::span(values)).begin());
  return values;
}

TensorDict made(TensorDict::Tensors tensors, TensorDict::Arrays arrays = {}, Value::Map meta = {}) {
  auto dict = TensorDict::create(std::move(tensors), std::move(arrays), std::move(meta));
  EXPECT_TRUE(dict) << (dict ? "" : dict.error().message);
  return dict ? *dict : TensorDict{};
}

/// What member k of the acceptance test holds.
TensorDict member(std::int64_t k) {
  const Value::List labels = k % 2 == 0 ? Value::List{"a", "b"} : Value::List{"b", "a"};
  return made({{"obs", ints({2, 2}, {k, 2 * k + 1, 3 * k, 4 * k + 1})}}, {{"labels", labels}},
              Value::Map{{"info", "test_info"}});
}

TEST(TensorDict, RefusesBatchesOfOtherLengthsScalarsAndWrongBytes) {
  const auto refused = [](TensorDict::Tensors tensors, TensorDict::Arrays arrays = {}) {
    const auto dict = TensorDict::create(std::move(tensors), std::move(arrays));
    return dict ? "no error" : dict.error().message;
  };
  auto short_bytes = ints({2}, {1, 2});
  short_bytes.bytes.pop_back();

  EXPECT_THAT(refused({{"a", ints({2}, {1, 2})}, {"b", ints({1}, {1})}}),
              HasSubstr("'b' has 1 rows, 'a' has 2"));
  EXPECT_THAT(refused({{"a", ints({}, {1})}}), HasSubstr("'a' is a scalar"));
  EXPECT_THAT(refused({{"a", short_bytes}}), HasSubstr("needs 16 bytes, it has 15"));
  EXPECT_THAT(refused({{"a", ints({2}, {1, 2})}}, {{"b", {Value(1)}}}), HasSubstr("'b' has 1 rows"));
  EXPECT_THAT(refused({{"a", ints({1}, {1})}}, {{"a", {Value(1)}}}), HasSubstr("'a'"));
}

TEST(Gather, GivesEveryMemberAllRowsInGroupOrder) {
  // The groups along dp of a mesh of 2 x 2 are {0, 2} and {1, 3}.
  const std::vector<TensorDict> even{member(0), member(2)};
  const std::vector<TensorDict> odd{member(1), member(3)};

  const auto first = gather(even, 0).value();
  const auto second = gather(odd, 1).value();

  EXPECT_EQ(first.tensors().at("obs").shape, (Shape{4, 2}));
  EXPECT_THAT(values_of(first.tensors().at("obs")), ElementsAre(0, 1, 0, 1, 2, 5, 6, 9));
  EXPECT_THAT(first.arrays().at("labels"), ElementsAre(Value("a"), Value("b"), Value("a"), Value("b")));
  EXPECT_THAT(values_of(second.tensors().at("obs")), ElementsAre(1, 3, 3, 5, 3, 7, 9, 13));
  EXPECT_THAT(second.arrays().at("labels"), ElementsAre(Value("b"), Value("a"), Value("b"), Value("a")));
  EXPECT_EQ(Value(second.meta()), Value(member(3).meta()));
}

TEST(Gather, NamesWhatDiffersBetweenMembers) {
  const auto refused = [](const TensorDict& other) {
    const std::vector<TensorDict> members{member(0), other, member(2)};
    const auto gathered = gather(members, 0);
    return gathered ? "no error" : gathered.error().message;
  };
  auto half = ints({2, 2}, {1, 2, 3, 4});
  half.dtype = DType::f64;
  const TensorDict::Arrays labels{{"labels", {Value("a"), Value("b")}}};

  EXPECT_THAT(refused(made({{"other", ints({2, 2}, {1, 2, 3, 4})}}, labels)),
              HasSubstr("'obs' is missing at members 1"));
  EXPECT_THAT(refused(made({{"obs", half}}, labels)),
              HasSubstr("'obs' is f64 rows of (2) at members 1 but i64 rows of (2) at members 0, 2"));
  EXPECT_THAT(refused(made({{"obs", ints({2, 1}, {1, 2})}}, labels)), HasSubstr("rows of (1) at members 1"));
  EXPECT_THAT(refused(made({{"obs", ints({2, 2}, {1, 2, 3, 4})}})),
              HasSubstr("'labels' is missing at members 1"));
  EXPECT_THAT(refused(made({{"obs", ints({1, 2}, {1, 2})}}, {{"labels", {Value("a")}}})),
              HasSubstr("member 1 has 1 rows"));
}

TEST(TensorDict, ConcatenatesAndMergesValuesOfTheBatch) {
  const auto part = [](std::int64_t row, Value::Map meta) {
    return made({{"x", ints({1}, {row})}}, {}, std::move(meta));
  };
  const std::vector<TensorDict> parts{
      part(1, Value::Map{{"info", "i"}, {"metrics", Value::Map{{"loss", 0.5}}}}),
      part(2, Value::Map{{"more", 7}, {"metrics", Value::Map{{"loss", 0.25}, {"norm", 1.0}}}})};

  const auto joined = TensorDict::concatenate(parts).value();

  EXPECT_THAT(values_of(joined.tensors().at("x")), ElementsAre(1, 2));
  EXPECT_EQ(Value(joined.meta()), Value(Value::Map{{"info", "i"},
                                                   {"more", 7},
                                                   {"metrics", Value::Map{{"loss", Value::List{0.5, 0.25}},
                                                                          {"norm", Value::List{1.0}}}}}));
}

TEST(TensorDict, RefusesToMergeValuesThatContradict) {
  const std::vector<TensorDict> parts{made({{"x", ints({1}, {1})}}, {}, Value::Map{{"info", "i"}}),
                                      made({{"x", ints({1}, {1})}}, {}, Value::Map{{"info", "j"}})};

  EXPECT_THAT(TensorDict::concatenate(parts).error().message, HasSubstr("'info'"));
}

TEST(TensorDict, RepeatsRowsOrTheBatch) {
  const auto dict = made({{"x", ints({2}, {1, 2})}});

  EXPECT_THAT(values_of(dict.repeat(2, TensorDict::Repeat::rows)->tensors().at("x")),
              ElementsAre(1, 1, 2, 2));
  EXPECT_THAT(values_of(dict.repeat(2, TensorDict::Repeat::batch)->tensors().at("x")),
              ElementsAre(1, 2, 1, 2));
  EXPECT_EQ(dict.repeat(0, TensorDict::Repeat::rows)->rows(), 0);
}

TEST(TensorDict, PadsWithRowsFromTheStartRepeatedlyIfNeeded) {
  const auto dict = made({{"x", ints({2}, {1, 2})}}, {{"l", {Value("a"), Value("b")}}});

  const auto [padded, added] = dict.pad_to_multiple(7).value();

  EXPECT_EQ(added, 5);
  EXPECT_THAT(values_of(padded.tensors().at("x")), ElementsAre(1, 2, 1, 2, 1, 2, 1));
  EXPECT_THAT(padded.arrays().at("l"), SizeIs(7));
  EXPECT_EQ(padded.unpad(added).value(), dict);
  EXPECT_EQ(dict.pad_to_multiple(2)->second, 0);
}

TEST(TensorDict, SplitsOnlyIntoEqualParts) {
  const auto dict = made({{"x", ints({4, 1}, {1, 2, 3, 4})}});

  const auto parts = dict.split(2).value();

  ASSERT_THAT(parts, SizeIs(2));
  EXPECT_THAT(values_of(parts[1].tensors().at("x")), ElementsAre(3, 4));
  EXPECT_THAT(dict.split(3).error().message, HasSubstr("4 rows do not divide into 3 parts"));
  EXPECT_FALSE(dict.split(0).has_value());
  EXPECT_FALSE(dict.slice(3, 2).has_value());
}

RC_GTEST_PROP(TensorDict, IsTheSameAfterSplittingAndConcatenating, ()) {
  const auto parts = *rc::gen::inRange<std::int64_t>(1, 6);
  const auto rows = parts * *rc::gen::inRange<std::int64_t>(0, 5);
  const auto width = *rc::gen::inRange<std::int64_t>(0, 4);
  std::vector<std::int64_t> values(static_cast<std::size_t>(rows * width));
  for (auto& value : values) value = *rc::gen::arbitrary<std::int64_t>();
  std::vector<Value> labels;
  for (std::int64_t i = 0; i < rows; ++i) labels.emplace_back(*rc::gen::arbitrary<std::int64_t>());
  const auto dict =
      TensorDict::create({{"x", ints({rows, width}, values)}}, {{"l", labels}}, Value::Map{{"m", 1}}).value();

  const auto split = dict.split(parts).value();

  RC_ASSERT(TensorDict::concatenate(split).value() == dict);
}

TEST(TensorDict, UnitesWhatDoesNotContradict) {
  const auto a = made({{"x", ints({1}, {1})}}, {}, Value::Map{{"m", 1}});
  const auto b = made({{"x", ints({1}, {1})}, {"y", ints({1}, {2})}}, {{"l", {Value(3)}}});

  const auto both = TensorDict::unite(a, b).value();

  EXPECT_THAT(both.tensors(), SizeIs(2));
  EXPECT_THAT(both.arrays(), SizeIs(1));
  EXPECT_THAT(TensorDict::unite(a, made({{"x", ints({1}, {9})}})).error().message, HasSubstr("tensor 'x'"));
  EXPECT_THAT(TensorDict::unite(a, made({}, {}, Value::Map{{"m", 2}})).error().message, HasSubstr("'m'"));
  EXPECT_THAT(TensorDict::unite(b, made({}, {{"l", {Value(4)}}})).error().message, HasSubstr("array 'l'"));
  EXPECT_THAT(TensorDict::unite(a, made({{"z", ints({2}, {1, 2})}})).error().message,
              HasSubstr("'z' has 2 rows"));
}

TEST(GatherValues, KeepsGroupOrderAndTypes) {
  std::vector<Value::Map> members;
  for (std::int64_t k = 0; k < 4; ++k)
    members.push_back(Value::Map{{"loss", Value::List{k, k + 1, k + 2}}, {"grad_norm", k}});

  const auto gathered = gather_values(members, MissingNames::refused).value();

  using List = Value::List;
  EXPECT_EQ(Value(gathered),
            Value(Value::Map{{"loss", List{List{0, 1, 2}, List{1, 2, 3}, List{2, 3, 4}, List{3, 4, 5}}},
                             {"grad_norm", List{0, 1, 2, 3}}}));
}

TEST(GatherValues, TreatsNamesThatAreMissingAsAsked) {
  const std::vector<Value::Map> members{Value::Map{{"a", nullptr}, {"b", "text"}}, Value::Map{},
                                        Value::Map{{"c", Value::Map{{"d", 1.5}}}, {"a", true}}};

  const auto shorter = gather_values(members, MissingNames::shorter).value();
  const auto filled = gather_values(members, MissingNames::null).value();

  std::vector<Key> order;
  for (const auto& entry : shorter.entries()) order.push_back(entry.key);
  EXPECT_THAT(order, ElementsAre(Key("a"), Key("b"), Key("c")));
  EXPECT_EQ(*shorter.find("a"), Value(Value::List{nullptr, true}));
  EXPECT_EQ(*filled.find("a"), Value(Value::List{nullptr, nullptr, true}));
  EXPECT_EQ(*filled.find("b"), Value(Value::List{"text", nullptr, nullptr}));
  EXPECT_THAT(gather_values(members, MissingNames::refused).error().message,
              HasSubstr("'a' is missing at member 1"));
  EXPECT_TRUE(gather_values({}, MissingNames::refused)->empty());
}

}  // namespace
}  // namespace troupe::core
