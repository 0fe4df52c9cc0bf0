#include "core/values/value.hpp"
#include "core/values/tree.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/checkpoint/values_text.hpp"
#include "core/errors.hpp"
#include "core/values/value_text.hpp"

namespace troupe::core {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using List = Value::List;
using Map = Value::Map;

Value bytes_of(const std::vector<int>& values) {
  Value::Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

Result<json> to_json(const Value& value) {
  return json::parse(TRY(value_text(value)));
}

Result<Value> value_from_json(const json& stored) {
  return parse_value(stored.dump());
}

std::string error_of(const json& stored) {
  const auto result = value_from_json(stored);
  return result ? "no error" : result.error().message;
}

Value nested(int levels) {
  Value value = 1;
  for (int i = 0; i < levels; ++i) value = List{std::move(value)};
  return value;
}

TEST(Value, PlainValuesArePlainJson) {
  const Value value = Map{{"iteration", 17}, {"name", "run"}, {"flags", List{true, nullptr, -3}}};

  const json expected = {{"iteration", 17}, {"name", "run"}, {"flags", {true, nullptr, -3}}};
  EXPECT_EQ(to_json(value).value(), expected);
  EXPECT_EQ(value_from_json(expected).value(), value);
}

TEST(Value, WhatJsonCannotSayHasATag) {
  EXPECT_EQ(value_text(Value::tuple({5, "x"})).value(), R"({"$tuple":[5,"x"]})");
  EXPECT_EQ(value_text(Map{{6, nullptr}, {"a", 1}}).value(), R"({"$map":[[6,null],["a",1]]})");
  EXPECT_EQ(value_text(Map{{"$ref", 1}}).value(), R"({"$map":[["$ref",1]]})");
  EXPECT_EQ(value_text(1.0).value(), R"({"$double":"3ff0000000000000"})");
  EXPECT_EQ(value_text(-0.0).value(), R"({"$double":"8000000000000000"})");
}

TEST(Value, TextIsCompactAndSortsPlainNames) {
  const Value value = Map{{"z", List{}},
                          {"", Map{}},
                          {"\xc3\xa9\n\"", List{1, List{true, nullptr}, -3}},
                          {"a", Map{{2, "x"}, {1, Value::tuple({})}}}};

  EXPECT_EQ(value_text(value).value(),
            R"({"":{},"a":{"$map":[[2,"x"],[1,{"$tuple":[]}]]},"z":[],"é\n\"":[1,[true,null],-3]})");
}

TEST(Value, TextOfAnySpellingIsReadUnlessNamesRepeat) {
  const Value value = Map{{"a", List{1, 2}}, {"b", Map{}}};

  EXPECT_EQ(parse_value(" { \"b\" : { } , \n\"a\":[1, 2]} ").value(), value);
  for (const auto* text : {"", "{", "[1,]", "{\"a\":1}x", "nul", "[1 2]"}) {
    EXPECT_EQ(parse_value(text).error().message, "values do not parse: this is not JSON") << text;
  }
  EXPECT_THAT(parse_value(R"([0,{"a":1,"b":2,"a":3}])").error().message,
              HasSubstr("at (1,) is damaged or from a newer version: a map has the key 'a' twice"));
}

TEST(Value, EndlesslyNestedTextIsRefusedEarly) {
  EXPECT_THAT(parse_value(std::string(10'000'000, '[')).error().message, HasSubstr("more than 64 levels"));
}

// RFC 4648, section 10.
// Covers stored-9.
TEST(Value, BytesAreBase64) {
  const std::vector<std::string> encoded{"", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"};
  const std::string text = "foobar";

  for (std::size_t i = 0; i < encoded.size(); ++i) {
    const auto* data = reinterpret_cast<const std::byte*>(text.data());
    const Value value = Value::Bytes(data, data + i);

    EXPECT_EQ(to_json(value).value(), (json{{"$bytes", encoded[i]}}));
    EXPECT_EQ(value_from_json({{"$bytes", encoded[i]}}).value(), value);
  }
  EXPECT_EQ(to_json(bytes_of({0xfb, 0xff, 0xfe})).value(), (json{{"$bytes", "+//+"}}));
}

// The content metadata of Megatron's tests.
// Covers stored-13.
TEST(Value, TuplesAndIntegerKeysSurvive) {
  const std::vector<Value> values{
      Map{{"a", 3}}, Map{{"nested", Map{{"a", 3}}}, {"flat", Value::tuple({5, Map{{6, nullptr}}})}}, Map{}};

  for (const Value& value : values) {
    const auto stored = json::parse(to_json(value).value().dump());

    EXPECT_EQ(value_from_json(stored).value(), value);
  }
}

TEST(Value, EveryBitOfADoubleSurvives) {
  for (const std::uint64_t bits :
       {0x7ff8'0000'0000'0001ULL, 0xfff0'0000'0000'0000ULL, 0x8000'0000'0000'0000ULL,
        0x0000'0000'0000'0001ULL, 0x3fb9'9999'9999'999aULL}) {
    const auto back = value_from_json(to_json(std::bit_cast<double>(bits)).value()).value();

    EXPECT_EQ(std::bit_cast<std::uint64_t>(back.as_double().value()), bits);
  }
}

TEST(Value, TypesAreNotEqualAcross) {
  EXPECT_FALSE(Value(1) == Value(1.0));
  EXPECT_FALSE(Value(1) == Value(true));
  EXPECT_FALSE(Value(List{1}) == Value::tuple({1}));
  EXPECT_FALSE(Value(Map{{"1", 0}}) == Value(Map{{1, 0}}));
  EXPECT_FALSE(Value(0.0) == Value(-0.0));
  EXPECT_TRUE(Value(std::numeric_limits<double>::quiet_NaN()) ==
              Value(std::numeric_limits<double>::quiet_NaN()));
}

TEST(Value, MapsKeepTheOrderAndAreEqualWithoutIt) {
  const Map map{{"z", 1}, {"a", 2}};

  EXPECT_EQ(map.entries()[0].key, Key("z"));
  EXPECT_EQ(Value(map), Value(Map{{"a", 2}, {"z", 1}}));
  EXPECT_FALSE(Value(map) == Value(Map{{"a", 2}, {"y", 1}}));
  EXPECT_FALSE(Value(map) == Value(Map{{"a", 2}}));
}

TEST(Value, SettingAKeyAgainReplacesItsValue) {
  Map map{{"a", 1}, {"b", 2}};

  map.set("a", 3).set("c", 4);

  EXPECT_EQ(Value(map), Value(Map{{"a", 3}, {"b", 2}, {"c", 4}}));
  EXPECT_TRUE(map.erase("b"));
  EXPECT_FALSE(map.erase("b"));
  EXPECT_EQ(map.size(), 2U);
}

TEST(Value, APathFindsWhatIsInside) {
  const Value value =
      Map{{"groups", List{Map{{"lr", 0.5}}}}, {"pair", Value::tuple({1, 2})}, {"m", Map{{7, 8}}}};

  for (const auto* path : {"groups.0.lr", "pair.1", "m.7"}) ASSERT_NE(value.find(path), nullptr) << path;
  EXPECT_EQ(value.find("groups.0.lr")->as_double(), 0.5);
  EXPECT_EQ(value.find("pair.1")->as_int(), 2);
  EXPECT_EQ(value.find("m.7")->as_int(), 8);
  EXPECT_EQ(value.find(""), &value);
  for (const auto* path : {"groups.1", "groups.-1", "groups.x", "groups.0.lr.x", "none", "groups."}) {
    EXPECT_EQ(value.find(path), nullptr) << path;
  }
}

TEST(Value, AnAccessorOfAnotherKindFindsNothing) {
  EXPECT_FALSE(Value(1).as_double());
  EXPECT_FALSE(Value(1.0).as_int());
  EXPECT_FALSE(Value(1).as_bool());
  EXPECT_EQ(Value(List{}).as_tuple(), nullptr);
  EXPECT_EQ(Value(Value::Tuple{}).as_list(), nullptr);
  EXPECT_EQ(Value("a").as_bytes(), nullptr);
}

TEST(Value, NonUtf8StringsAreRefusedWithTheirPlace) {
  for (const auto* text :
       {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\xe0\x80\x80", "a\x80"}) {
    const auto result = to_json(Map{{"name", List{text}}});

    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Errc::invalid_argument);
    EXPECT_THAT(result.error().message, HasSubstr("('name', 0) is not UTF-8"));
  }
  EXPECT_FALSE(to_json(Map{{"\xff", 1}}));
  EXPECT_TRUE(to_json("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"));
}

TEST(Value, SixtyFourLevelsAreTheLimit) {
  const json deepest = to_json(nested(64)).value();

  EXPECT_EQ(value_from_json(deepest).value(), nested(64));
  EXPECT_THAT(to_json(nested(65)).error().message, HasSubstr("more than 64 levels"));
  EXPECT_THAT(error_of(json::array({deepest})), HasSubstr("more than 64 levels"));
}

TEST(Value, DamagedJsonIsRefusedByName) {
  EXPECT_THAT(error_of({{"a", {{"$enum", 3}}}}),
              HasSubstr("('a',) is damaged or from a newer version: unknown tag \"$enum\""));
  EXPECT_THAT(error_of({{"$tuple", json::array()}, {"x", 1}}),
              HasSubstr("\"$tuple\" stands next to 1 other"));
  EXPECT_THAT(error_of({{"$tuple", 1}}), HasSubstr("expected a list, found int"));
  EXPECT_THAT(error_of(1.5), HasSubstr("found the number 1.5"));
  EXPECT_THAT(error_of(std::uint64_t{1} << 63), HasSubstr("9223372036854775808 does not fit"));
  for (const auto* digits : {"", "3ff", "3ff000000000000g", "-ff0000000000000", "3ff00000000000000"}) {
    EXPECT_THAT(error_of({{"$double", digits}}), HasSubstr("16 hex digits"));
  }
  for (const auto* text : {"Zg=", "Zh==", "Zm9=", "Z===", "====", "Zg==Zg==", "Zm9v\n", "Zm9*"}) {
    EXPECT_THAT(error_of({{"$bytes", text}}), HasSubstr("base64")) << text;
  }
  const auto pairs = [](const char* text) { return error_of(json::parse(text)); };
  EXPECT_THAT(pairs(R"({"$map": 1})"), HasSubstr("list of pairs"));
  EXPECT_THAT(pairs(R"({"$map": [[1]]})"), HasSubstr("pairs of key and value"));
  EXPECT_THAT(pairs(R"({"$map": [[true, 1]]})"), HasSubstr("a key is a string or an integer"));
  EXPECT_THAT(pairs(R"({"$map": [["a", 1], [7, 1], ["a", 2]]})"), HasSubstr("the key 'a' twice"));
}

Value any_value(int levels) {
  const int kind = *rc::gen::inRange(0, levels > 0 ? 9 : 6);
  if (kind == 1) return *rc::gen::arbitrary<bool>();
  if (kind == 2) return *rc::gen::arbitrary<std::int64_t>();
  if (kind == 3) return std::bit_cast<double>(*rc::gen::arbitrary<std::uint64_t>());
  if (kind == 4) return *rc::gen::container<std::string>(rc::gen::inRange<char>(0, 127));
  if (kind == 5) return bytes_of(*rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 256)));
  if (kind < 6) return {};
  List items;
  Map map;
  for (int i = *rc::gen::inRange(0, 4); i > 0; --i) {
    items.push_back(any_value(levels - 1));
    const Key key = *rc::gen::arbitrary<bool>() ? Key(std::int64_t{i})
                                                : Key((i % 2 != 0 ? "$" : "k") + std::to_string(i));
    map.set(key, items.back());
  }
  return kind == 6 ? Value(items) : kind == 7 ? Value::tuple(items) : Value(map);
}

// Covers stored-13.
RC_GTEST_PROP(Value, SurvivesItsJsonText, ()) {
  const Value value = any_value(4);

  const auto text = to_json(value).value().dump();

  RC_ASSERT(value_from_json(json::parse(text)).value() == value);
}

/// Any JSON, often with tags in it.
json any_json(int levels) {
  const int kind = *rc::gen::inRange(0, levels > 0 ? 9 : 5);
  if (kind == 0) return nullptr;
  if (kind == 1) return *rc::gen::arbitrary<std::int64_t>();
  if (kind == 2) return *rc::gen::element("", "Zm8=", "3ff0000000000000", "a", "$map");
  if (kind == 3) return *rc::gen::arbitrary<std::uint64_t>();
  if (kind == 4) return *rc::gen::arbitrary<bool>();
  json items = json::array();
  for (int i = *rc::gen::inRange(0, 3); i > 0; --i) items.push_back(any_json(levels - 1));
  if (kind == 5) return items;
  if (kind == 6) return {{*rc::gen::element("a", "b"), any_json(levels - 1)}, {"c", items}};
  const std::string tag = *rc::gen::element("$map", "$tuple", "$bytes", "$double", "$other");
  if (tag == "$map" && *rc::gen::arbitrary<bool>()) items = json::array({json::array({any_json(0), items})});
  return {{tag, kind == 7 ? items : any_json(levels - 1)}};
}

RC_GTEST_PROP(Value, JsonIsRefusedOrStandsForOneValue, ()) {
  const json stored = any_json(4);

  const auto value = value_from_json(stored);

  if (!value) {
    RC_ASSERT(value.error().code == Errc::corrupt);
    return;
  }
  RC_ASSERT(value_from_json(to_json(*value).value()).value() == *value);
}

TEST(ValueDiff, NamesWhatIsOneSidedAndWhatDiffers) {
  const Value left = Map{{"a", 1}, {"list", List{1, 2, 3}}, {"same", "x"}, {"kind", 1}};
  const Value right = Map{{"same", "x"}, {"list", List{1, 5}}, {"kind", 1.0}, {"b", Map{{"c", 1}}}};

  const auto difference = diff(left, right);

  EXPECT_EQ(difference.only_left, (std::vector<KeyPath>{{"a"}, {"list", 2}}));
  EXPECT_EQ(difference.only_right, (std::vector<KeyPath>{{"b"}}));
  EXPECT_EQ(difference.mismatches, (std::vector<TreeDifference::Mismatch>{{{"list", 1}, "int", "int"},
                                                                          {{"kind"}, "int", "double"}}));
}

// Covers stored-4.
TEST(ValueDiff, ReadsLikeMegatronsWarning) {
  const auto difference = diff(Map{{"rank", 0}}, Map{{"rank", 3}});

  EXPECT_EQ(to_string(difference), "only left: [], only right: [], mismatches: [(('rank',), int, int)]");
  EXPECT_EQ(to_string(diff(Map{{"a", List{}}, {7, 1}}, Map{{"a", List{0}}})),
            "only left: [(7,)], only right: [('a', 0)], mismatches: []");
}

TEST(ValueDiff, TuplesAreNotLookedInto) {
  const auto difference = diff(Map{{"t", Value::tuple({1, 2})}}, Map{{"t", Value::tuple({1, 3})}});

  EXPECT_EQ(to_string(difference), "only left: [], only right: [], mismatches: [(('t',), tuple, tuple)]");
}

TEST(ValueDiff, TheOrderOfEntriesDoesNotMatter) {
  EXPECT_TRUE(diff(Map{{"a", 1}, {"b", 2}}, Map{{"b", 2}, {"a", 1}}).empty());
}

}  // namespace
}  // namespace troupe::core
