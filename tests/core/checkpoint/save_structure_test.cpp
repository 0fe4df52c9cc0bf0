#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/checkpoint/save_plan.hpp"
#include "core/hash.hpp"
#include "tests/core/checkpoint/saved_job.hpp"

namespace troupe::core {
namespace {

using testing::HasSubstr;

const char* const kStructureText = R"({"tensors":[["w","f32",[4,2]],["\"é\"","boolean",[]]],)"
                                   R"("pieces":[[0,[0,0],[3,2]],[0,[3,0],[1,1]],[1,[],[]]]})";

SaveStructure sample_structure() {
  return {{{"w", DType::f32, {4, 2}}, {"\"é\"", DType::boolean, {}}},
          {{0, {{0, 0}, {3, 2}}}, {0, {{3, 0}, {1, 1}}}, {1, {}}}};
}

std::string refusal_of_structure(const std::string& text) {
  const auto parsed = parse_structure(text);
  if (parsed) return "no error";
  EXPECT_EQ(parsed.error().code, Errc::corrupt) << text;
  return parsed.error().message;
}

TEST(SaveStructure, IsOneLineOfJson) {
  EXPECT_EQ(to_text(sample_structure()), kStructureText);
  EXPECT_EQ(parse_structure(kStructureText).value(), sample_structure());
  EXPECT_EQ(to_text(SaveStructure{}), R"({"tensors":[],"pieces":[]})");
}

TEST(SaveStructure, SaysATensorsHomeOnlyIfItMatters) {
  SaveStructure structure{{{"w", DType::f32, {4}, 7}, {"v", DType::f32, {4}}}, {}};
  const std::string text = R"({"tensors":[["w","f32",[4],7],["v","f32",[4]]],"pieces":[]})";

  EXPECT_EQ(to_text(structure), text);
  EXPECT_EQ(parse_structure(text).value(), structure);
  auto elsewhere = structure;
  elsewhere.tensors[0].home = 0;
  EXPECT_EQ(layout_hash(structure), layout_hash(elsewhere));
  EXPECT_EQ(layout_hash(elsewhere), hash64(to_text(elsewhere)));
  EXPECT_THAT(refusal_of_structure(R"({"tensors":[["w","f32",[4],0]],"pieces":[]})"),
              HasSubstr("a home is 0"));
  EXPECT_THAT(refusal_of_structure(R"({"tensors":[["w","f32",[4],4294967296]],"pieces":[]})"),
              HasSubstr("does not parse"));
}

RC_GTEST_PROP(SaveStructure, ReadsAsItWasWritten, ()) {
  for (const auto& structure : any_job().structures) {
    const auto parsed = parse_structure(to_text(structure));

    RC_ASSERT(parsed.has_value());
    RC_ASSERT(*parsed == structure);
  }
}

TEST(SaveStructure, IsRefusedWhereverItIsCut) {
  const std::string text = kStructureText;

  for (std::size_t length = 0; length < text.size(); ++length)
    EXPECT_THAT(refusal_of_structure(text.substr(0, length)),
                HasSubstr("the structure of a save does not parse"))
        << length;
  EXPECT_THAT(refusal_of_structure(text + " "), HasSubstr("expected the end"));
}

TEST(SaveStructure, IsReadAsWrittenOrRefusedWhateverBitFlips) {
  const std::string text = kStructureText;

  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    auto flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const auto parsed = parse_structure(flipped);
    if (parsed) {
      EXPECT_NE(*parsed, sample_structure()) << flipped;
      EXPECT_EQ(parse_structure(to_text(*parsed)).value(), *parsed) << flipped;
    }
  }
}

TEST(SaveStructure, RefusesOtherTypesAtEveryPlace) {
  // Every value of the text in turn becomes something else.
  const std::vector<std::string> places{
      R"([["w","f32",[4]]])", R"(["w","f32",[4]])", R"("w")", R"("f32")", "[4]", "4",
      "[[0,[1],[3]]]",        "[0,[1],[3]]",        "0",      "[1]",      "[3]"};
  const std::vector<std::string> others{"null",
                                        "true",
                                        "-1",
                                        "1.5",
                                        "1e3",
                                        "\"x\"",
                                        "{}",
                                        "{\"a\":1}",
                                        "[[]]",
                                        "[null]",
                                        "18446744073709551616",
                                        "4611686018427387905"};
  const std::string text = R"({"tensors":[["w","f32",[4]]],"pieces":[[0,[1],[3]]]})";
  ASSERT_TRUE(parse_structure(text));

  for (const auto& place : places) {
    const auto at = text.rfind(place);
    ASSERT_NE(at, std::string::npos) << place;
    for (const auto& other : others) {
      auto changed = text;
      changed.replace(at, place.size(), other);
      // A tensor may have another name.
      if (place == "\"w\"" && other == "\"x\"") continue;
      EXPECT_THAT(refusal_of_structure(changed), HasSubstr("does not parse")) << changed;
    }
  }
}

TEST(SaveStructure, SaysWhatIsWrongAndWhere) {
  EXPECT_EQ(refusal_of_structure(R"({"tensors":[["w","f33",[4]]],"pieces":[]})").substr(0, 70),
            "the structure of a save does not parse: 'f33' is not a dtype; choose o");
  EXPECT_EQ(refusal_of_structure(R"({"tensors":[["w","f32",[4]]],"pieces":[[1,[0],[4]]]})"),
            "the structure of a save does not parse: a piece belongs to no tensor (before byte 50)");
  EXPECT_EQ(refusal_of_structure(R"({"tensors":[["w","f32",[4]]],"pieces":[[0,[2],[4]]]})"),
            "the structure of a save does not parse: the piece [2:6] does not lie in tensor 'w' of shape (4) "
            "(before byte 50)");
  EXPECT_THAT(refusal_of_structure(R"({"tensors":[["w","f32",[4]]],"pieces":[[0,[0],[4,1]]]})"),
              HasSubstr("does not lie in"));
  EXPECT_THAT(refusal_of_structure(R"({"tensors":[["w","f32",[1099511627776,1099511627776]]],"pieces":[]})"),
              HasSubstr("more than 2^62 elements"));
  EXPECT_THAT(refusal_of_structure("{\"tensors\":[[\"\xff\",\"f32\",[4]]],\"pieces\":[]}"),
              HasSubstr("a string of UTF-8"));
  EXPECT_THAT(refusal_of_structure(R"({"tensors":[["w","f32",[04]]],"pieces":[]})"),
              HasSubstr("expected a number from 0 to"));
}

TEST(SaveStructure, RefusesEndlessNestingAndEndlessShapes) {
  EXPECT_THAT(refusal_of_structure("{\"tensors\":" + std::string(1'000'000, '[')),
              HasSubstr("does not parse"));
  std::string shape = "[1";
  for (int i = 0; i < 1000; ++i) shape += ",1";
  EXPECT_THAT(refusal_of_structure(R"({"tensors":[["w","f32",)" + shape + R"(]]],"pieces":[]})"),
              HasSubstr("at most 64 sizes"));
}

}  // namespace
}  // namespace troupe::core
