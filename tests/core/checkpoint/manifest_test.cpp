#include "core/checkpoint/manifest.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/checkpoint/sealed_text.hpp"
#include "core/hash.hpp"

namespace troupe::core {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const char* const kManifestText =
    "{\"format\":\"troupe-checkpoint\",\"version\":1,\n"
    "\"step\":7,\"save\":\"0123456789abcdef\",\n"
    "\"topology\":{\"world\":2},\n"
    "\"common\":{\"names\":[\"a,b\",\"]}\"]},\n"
    "\"files\":[\n"
    "{\"name\":\"f\",\"bytes\":88,\"header_bytes\":64,\"header_hash\":\"00000000000000aa\"},\n"
    "{\"name\":\"g\",\"bytes\":70,\"header_bytes\":64,\"header_hash\":\"00000000000000bb\"}\n"
    "],\n"
    "\"tensors\":[\n"
    "{\"key\":\"a\\\"\\n\xc3\xa9\",\"dtype\":\"BF16\",\"shape\":[3],\"shards\":[[1,64,70,"
    "\"00000000000000cc\",[0],[3]]]},\n"
    "{\"key\":\"w\",\"dtype\":\"F32\",\"shape\":[3,2],\"shards\":[[0,64,80,\"fedcba9876543210\",[0,0],[2,2]],"
    "[0,80,88,\"00000000000000dd\",[2,0],[1,2]]]}\n"
    "],\n"
    "\"objects\":[\n"
    "{\"key\":\"rng\",\"grid\":[2],\"cell\":[0],\"value\":{\"s\":\"}\\\"],\"}},\n"
    "{\"key\":\"rng\",\"grid\":[2],\"cell\":[1],\"value\":null}\n"
    "],\n";

Manifest sample_manifest() {
  Manifest manifest;
  manifest.step = StepCount{7};
  manifest.save = "0123456789abcdef";
  manifest.topology = Value::Map{{"world", 2}};
  manifest.common = Value::Map{{"names", Value::List{"a,b", "]}"}}};
  manifest.files = {{"f", 88, 64, 0xaa}, {"g", 70, 64, 0xbb}};
  manifest.tensors = {
      {"a\"\n\u00e9", DType::bf16, {3}, {{{{0}, {3}}, 1, 64, 70, 0xcc}}},
      {"w",
       DType::f32,
       {3, 2},
       {{{{0, 0}, {2, 2}}, 0, 64, 80, 0xfedcba9876543210}, {{{2, 0}, {1, 2}}, 0, 80, 88, 0xdd}}}};
  manifest.objects = {{"rng", {2}, {0}, Value::Map{{"s", "}\"],"}}}, {"rng", {2}, {1}, nullptr}};
  return manifest;
}

std::string hashed(const std::string& body) {
  return body + "\"hash\":\"" + hex64(hash64(body)) + "\"}\n";
}

std::string refusal_of_manifest(const std::string& text) {
  const auto parsed = parse_manifest(text);
  if (parsed) return "no error";
  EXPECT_EQ(parsed.error().code, Errc::corrupt);
  return parsed.error().message;
}

/// The refusal_of_manifest of the sample_manifest with a change, under a good hash.
std::string refusal_with(const std::string& from, const std::string& to) {
  std::string body = kManifestText;
  const auto at = body.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  body.replace(at, from.size(), to);
  const auto message = refusal_of_manifest(hashed(body));
  const std::string begin = "the manifest is not valid: ";
  return message.starts_with(begin) ? message.substr(begin.size()) : message;
}

/// The same for what the reader of the text says before it looks at the meaning.
std::string complaint_with(const std::string& from, const std::string& to) {
  const auto message = refusal_with(from, to);
  return message.substr(0, message.find(" (before byte"));
}

TEST(Manifest, IsJsonWithOneLineAnItem) {
  EXPECT_EQ(to_text(sample_manifest()), hashed(kManifestText));
  EXPECT_EQ(parse_manifest(hashed(kManifestText)).value(), sample_manifest());
}

TEST(Manifest, SaysItsHashInItsLastLine) {
  EXPECT_EQ(hash_of_sealed(to_text(sample_manifest())), hex64(hash64(kManifestText)));
}

TEST(Manifest, OfNothingHasEmptyLists) {
  Manifest nothing;
  nothing.save = "0000000000000000";

  const auto text = to_text(nothing);

  EXPECT_THAT(
      text,
      HasSubstr(
          "\"topology\":null,\n\"common\":null,\n\"files\":[\n],\n\"tensors\":[\n],\n\"objects\":[\n],\n"));
  EXPECT_EQ(parse_manifest(text).value(), nothing);
}

TEST(Manifest, FindsTensorsByTheirKeys) {
  const auto manifest = sample_manifest();

  ASSERT_NE(manifest.find("w"), nullptr);
  ASSERT_NE(manifest.find("w"), nullptr);
  EXPECT_EQ(manifest.find("w")->shape, (Shape{3, 2}));
  EXPECT_EQ(manifest.find("v"), nullptr);
  EXPECT_EQ(manifest.find(""), nullptr);
  EXPECT_EQ(manifest.tensor_bytes(), 30U);
}

TEST(Manifest, IsRefusedWhereverItIsCut) {
  const auto text = hashed(kManifestText);

  for (std::size_t length = 0; length < text.size(); ++length)
    EXPECT_NE(refusal_of_manifest(text.substr(0, length)), "no error") << length;
  EXPECT_EQ(refusal_of_manifest(text.substr(0, text.size() - 1)),
            "the manifest is cut short: it does not end with its hash");
  EXPECT_EQ(refusal_of_manifest(text + "\n"), "the manifest is cut short: it does not end with its hash");
}

TEST(Manifest, IsRefusedWhateverBitFlips) {
  const auto text = hashed(kManifestText);

  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    auto flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(parse_manifest(flipped)) << bit;
  }
}

TEST(Manifest, NamesBothHashesOfAnAlteredText) {
  auto text = hashed(kManifestText);
  text[text.find("\"step\":7") + 7] = '8';

  const auto body = text.substr(0, text.rfind("\"hash\""));
  EXPECT_EQ(refusal_of_manifest(text), "the manifest was altered: its bytes have the hash " +
                                           hex64(hash64(body)) + ", it says " +
                                           hex64(hash64(std::string_view(kManifestText))));
}

TEST(Manifest, OfAnotherVersionIsNotRead) {
  const auto newer = parse_manifest("{\"format\":\"troupe-checkpoint\",\"version\":2,whatever");

  ASSERT_FALSE(newer);
  EXPECT_EQ(newer.error().code, Errc::mismatch);
  EXPECT_EQ(newer.error().message,
            "the checkpoint has format version 2, this program reads version 1; use a build of Troupe that "
            "reads the first");
}

TEST(Manifest, SaysWhenAFileIsNone) {
  for (const char* text : {"", "{}", "[]", "{\"format\":\"other\",\"version\":1,\n",
                           "{\"format\":\"troupe-checkpoint\",\"version\":-1,\n"})
    EXPECT_EQ(refusal_of_manifest(text),
              "this is not a checkpoint's manifest: it does not begin with the format \"troupe-checkpoint\"");
}

TEST(Manifest, RefusesOtherTypesAtEveryPlace) {
  const std::vector<std::string> places{"7",
                                        "\"0123456789abcdef\"",
                                        "\"f\"",
                                        "88",
                                        "64",
                                        "\"00000000000000aa\"",
                                        "\"BF16\"",
                                        "[3]",
                                        "[1,64,70,\"00000000000000cc\",[0],[3]]",
                                        "[[1,64,70,\"00000000000000cc\",[0],[3]]]",
                                        "64,70",
                                        "\"00000000000000cc\"",
                                        "[0],[3]",
                                        "[2],\"cell\"",
                                        "\"rng\""};
  const std::vector<std::string> others{"null", "true",      "-1",   "1.5",    "1e3",
                                        "{}",   "{\"a\":1}", "[[]]", "[null]", "18446744073709551616",
                                        "007",  "\"\\u12\"", ""};

  for (const auto& place : places) {
    for (const auto& other : others)
      EXPECT_NE(refusal_with(place, other), "no error") << place << " " << other;
  }
}

TEST(Manifest, SaysWhatTheTextShouldHave) {
  EXPECT_EQ(complaint_with("\"step\":7", "\"step\":9223372036854775808"),
            "expected a number from 0 to 9223372036854775807");
  EXPECT_EQ(complaint_with("0123456789abcdef", "0123456789ABCDEF"),
            "expected a hash of 16 hexadecimal digits");
  EXPECT_EQ(complaint_with("\"step\":7", "\"step\": 7"), "expected a number from 0 to 9223372036854775807");
  EXPECT_EQ(complaint_with("\"bytes\":88,", ""), "expected ',\"bytes\":'");
  EXPECT_EQ(complaint_with("\"f\"", "\"\xff\""), "expected a string of UTF-8");
  EXPECT_EQ(complaint_with("[1,64,70,", "[4294967296,64,70,"), "expected a number from 0 to 4294967295");
  EXPECT_EQ(complaint_with("BF16", "F4"), "the element type 'F4' is not one that this reader knows");
  EXPECT_EQ(complaint_with("{\"world\":2}", "{\"world\":2"), "values do not parse: this is not JSON");
  EXPECT_EQ(
      complaint_with("{\"world\":2}", "{\"world\":0.5}"),
      "the stored value at ('world',) is damaged or from a newer version: found the number 0.5, expected "
      "{\"$double\": ...}");
  EXPECT_EQ(complaint_with("{\"world\":2}", std::string(100, '[') + std::string(100, ']')).substr(0, 22),
            "the stored value at (0");
  EXPECT_EQ(complaint_with("{\"world\":2}", std::string(100'000, '[')).substr(0, 22),
            "the stored value at (0");
  EXPECT_EQ(complaint_with("],\n\"tensors\"", "],\n\"more\":[\n],\n\"tensors\""), "expected '\"tensors\":['");
  EXPECT_EQ(complaint_with("null}\n],\n", "null}\n],\n\"more\":1,\n"), "expected the end");
}

TEST(Manifest, RefusesNamesThatLeaveTheDirectory) {
  for (const char* name : {"", ".", "..", "../f", "a/b", "/etc/passwd", "a\\u0000b"})
    EXPECT_THAT(refusal_with("\"f\"", "\"" + std::string(name) + "\""),
                HasSubstr("is not the name of a file in this directory"))
        << name;
  EXPECT_EQ(refusal_with("\"f\"", "\"g\""), "file 'g' is listed twice");
  EXPECT_EQ(refusal_with("\"f\"", "\"manifest.json\""), "file 'manifest.json' is listed twice");
}

TEST(Manifest, RefusesHeadersThatNoReaderOfSafetensorsTakes) {
  const std::string from = "88,\"header_bytes\":64";
  EXPECT_EQ(refusal_with(from, "88,\"header_bytes\":100000009"),
            "the header of file 'f' has 100000009 bytes, at most 100000008 are allowed");
  EXPECT_EQ(refusal_with(from, "88,\"header_bytes\":100000008"),
            "byte 64 of file 'f' belongs to no shard, or to two");
}

TEST(Manifest, RefusesTensorsThatAreNotCovered) {
  EXPECT_EQ(refusal_with("[2,0],[1,2]", "[2,0],[1,1]"),
            "tensor 'w': Invalid access pattern: 5 of 6 elements of a tensor of shape (3, 2) are covered by "
            "2 boxes");
  EXPECT_EQ(
      refusal_with("[2,0],[1,2]", "[1,0],[1,2]"),
      "tensor 'w': Invalid access pattern: [0:2, 0:2] and [1:2, 0:2] of a tensor of shape (3, 2) overlap");
  EXPECT_EQ(refusal_with("[2,0],[1,2]", "[2,0],[2,2]"),
            "tensor 'w': Invalid access pattern: [2:4, 0:2] does not lie in a tensor of shape (3, 2)");
  EXPECT_EQ(refusal_with("[2,0],[1,2]", "[2],[1]"),
            "tensor 'w': Invalid access pattern: [2:3] does not lie in a tensor of shape (3, 2)");
  EXPECT_EQ(refusal_with("\"shape\":[3,2]", "\"shape\":[4294967296,4294967296]"),
            "tensor 'w': the shape (4294967296, 4294967296) has more than 2^62 elements");
}

TEST(Manifest, RefusesShardsOfAnotherSizeThanTheirBytes) {
  EXPECT_EQ(refusal_with("[0,80,88,", "[0,80,87,"),
            "tensor 'w': [2:3, 0:2] holds 2 elements of 4 bytes, bytes 80 to 87 are given");
  EXPECT_EQ(refusal_with("[0,80,88,", "[0,88,80,"),
            "tensor 'w': [2:3, 0:2] holds 2 elements of 4 bytes, bytes 88 to 80 are given");
  EXPECT_EQ(refusal_with("[0,80,88,", "[2,80,88,"), "tensor 'w' lies in a file that is not listed");
}

TEST(Manifest, RefusesAShardWhoseBytesExceed64Bits) {
  const std::string huge = "4611686018427387904";
  std::string body = kManifestText;
  const auto begin = body.find("{\"key\":\"w\"");
  body.replace(begin, body.find("\n],", begin) - begin,
               "{\"key\":\"w\",\"dtype\":\"F32\",\"shape\":[" + huge +
                   "],\"shards\":[[0,64,64,\"fedcba9876543210\",[0],[" + huge + "]]]}");

  EXPECT_THAT(refusal_of_manifest(hashed(body)),
              HasSubstr("holds 4611686018427387904 elements of 4 bytes, bytes 64 to 64"));
}

TEST(Manifest, RefusesHugeBoxesThatOverlap) {
  const std::string huge = "4611686018427387904";
  const std::string shard = "[0,64,64,\"fedcba9876543210\",[0],[" + huge + "]]";
  std::string body = kManifestText;
  const auto begin = body.find("{\"key\":\"w\"");
  body.replace(begin, body.find("\n],", begin) - begin,
               "{\"key\":\"w\",\"dtype\":\"U8\",\"shape\":[" + huge + "],\"shards\":[" + shard + "," + shard +
                   "," + shard + "," + shard + "," + shard + "]}");

  EXPECT_THAT(refusal_of_manifest(hashed(body)), HasSubstr("overlap"));
}

TEST(Manifest, RefusesBytesThatBelongToNobodyOrToTwo) {
  EXPECT_EQ(refusal_with("\"bytes\":88", "\"bytes\":89"),
            "file 'f' has 89 bytes, its header and shards end at 88");
  EXPECT_EQ(refusal_with("\"bytes\":88,\"header_bytes\":64", "\"bytes\":88,\"header_bytes\":60"),
            "byte 60 of file 'f' belongs to no shard, or to two");
  EXPECT_EQ(refusal_with("[0,80,88,", "[0,72,80,"), "byte 72 of file 'f' belongs to no shard, or to two");
  EXPECT_EQ(refusal_with("[0,80,88,", "[1,80,88,"), "file 'f' has 88 bytes, its header and shards end at 80");
}

TEST(Manifest, RefusesAFileShorterThanItsHeader) {
  EXPECT_EQ(refusal_with("\"bytes\":70,\"header_bytes\":64", "\"bytes\":70,\"header_bytes\":71"),
            "byte 64 of file 'g' belongs to no shard, or to two");
  EXPECT_EQ(refusal_with("\n],\n\"tensors\"",
                         ",\n{\"name\":\"h\",\"bytes\":64,\"header_bytes\":65,"
                         "\"header_hash\":\"00000000000000aa\"}\n],\n\"tensors\""),
            "file 'h' has 64 bytes, its header and shards end at 65");
}

TEST(Manifest, RefusesTensorsOutOfOrderOrTwice) {
  EXPECT_EQ(refusal_with("\"key\":\"w\"", "\"key\":\"A\""), "tensor 'A' comes twice or out of order");
  EXPECT_EQ(refusal_with("\"key\":\"w\"", "\"key\":\"a\\\"\\n\u00e9\""),
            "tensor 'a\"\n\u00e9' comes twice or out of order");
}

TEST(Manifest, RefusesObjectsThatLeaveTheirGridOrComeTwice) {
  EXPECT_EQ(refusal_with("\"cell\":[1]", "\"cell\":[2]"), "object 'rng': (2) does not lie in its grid (2)");
  EXPECT_EQ(refusal_with("\"cell\":[1]", "\"cell\":[1,0]"),
            "object 'rng': (1, 0) does not lie in its grid (2)");
  EXPECT_EQ(refusal_with("\"cell\":[1]", "\"cell\":[0]"), "object 'rng' comes twice at (0)");
  EXPECT_EQ(refusal_with("\"grid\":[2],\"cell\":[1]", "\"grid\":[3],\"cell\":[1]"),
            "object 'rng' has the grids (2) and (3)");
}

}  // namespace
}  // namespace troupe::core
