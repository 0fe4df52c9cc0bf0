#include "core/checkpoint/copy_manifest.hpp"

#include <fmt/format.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/hash.hpp"

namespace troupe::core {
namespace {

using testing::HasSubstr;

CopyManifest sample() {
  CopyManifest manifest;
  manifest.name = {StepCount{200}, 0x0123456789abcdef};
  manifest.owner = Rank{3};
  manifest.world = WorldSize{8};
  manifest.layout = R"({"tensors":[["a","f32",[6]]],"pieces":[[0,[2],[3]]]})";
  manifest.topology = R"({"world":8})";
  manifest.common = R"({"done":[1,2],"name":"a,b\n]"})";
  manifest.files = {{"shard_00003_0.safetensors", {{96, 1}, {120, 2}}},
                    {"shard_00003_1.safetensors", {{96, 3}}}};
  return manifest;
}

const char* const kBody =
    "{\"format\":\"troupe-copy\",\"version\":2,\n"
    "\"step\":200,\"save\":\"0123456789abcdef\",\"owner\":3,\"world\":8,\n"
    "\"layout\":{\"tensors\":[[\"a\",\"f32\",[6]]],\"pieces\":[[0,[2],[3]]]},\n"
    "\"topology\":{\"world\":8},\n"
    "\"common\":{\"done\":[1,2],\"name\":\"a,b\\n]\"},\n"
    "\"files\":[\n"
    "{\"name\":\"shard_00003_0.safetensors\",\"segments\":[[96,\"0000000000000001\"],"
    "[120,\"0000000000000002\"]]},\n"
    "{\"name\":\"shard_00003_1.safetensors\",\"segments\":[[96,\"0000000000000003\"]]}\n"
    "],\n";

std::string sealed(const std::string& body) {
  return fmt::format("{}\"hash\":\"{:016x}\"}}\n", body, hash64(body));
}

std::string complaint(const std::string& body) {
  const auto parsed = parse_copy_manifest(sealed(body));
  return parsed ? "none" : parsed.error().message;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(CopyManifest, HasTheseBytes) {
  EXPECT_EQ(to_text(sample()), sealed(kBody));
}

TEST(CopyManifest, ComesBackFromItsText) {
  const auto parsed = parse_copy_manifest(sealed(kBody));

  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(*parsed, sample());
  EXPECT_EQ(parsed->file_bytes(), 216u);
}

TEST(CopyManifest, MayHaveNoFiles) {
  auto empty = sample();
  empty.files.clear();

  EXPECT_EQ(parse_copy_manifest(to_text(empty)).value(), empty);
}

TEST(CopyManifest, IsRefusedWhenAnyByteIsAlteredOrMissing) {
  const auto text = to_text(sample());
  for (std::size_t at = 0; at < text.size(); ++at) {
    auto altered = text;
    altered[at] = static_cast<char>(altered[at] ^ 1);
    EXPECT_FALSE(parse_copy_manifest(altered)) << at;
    EXPECT_FALSE(parse_copy_manifest(text.substr(0, at))) << at;
  }
}

TEST(CopyManifest, OfAnotherVersionSaysSo) {
  const auto parsed = parse_copy_manifest(sealed(replaced(kBody, "\"version\":2", "\"version\":1")));

  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code, Errc::mismatch);
}

TEST(CopyManifest, MayNotLeaveItsDirectory) {
  for (const std::string name : {"..", ".", "", "../escape", "a/b", "manifest.json"}) {
    EXPECT_NE(complaint(replaced(kBody, "shard_00003_1.safetensors", name)), "none") << name;
  }
  EXPECT_THAT(complaint(replaced(kBody, "shard_00003_1.safetensors", "shard_00003_0.safetensors")),
              HasSubstr("listed twice"));
}

TEST(CopyManifest, MayNotContradictItself) {
  for (const std::string end : {"[95,", "[96,", "[0,"})
    EXPECT_THAT(complaint(replaced(kBody, "[120,", end)), HasSubstr("ends after")) << end;
  EXPECT_THAT(complaint(replaced(kBody, "[[96,\"0000000000000003", "[[0,\"0000000000000003")),
              HasSubstr("ends after"));
  EXPECT_THAT(complaint(replaced(replaced(kBody, "[120,", "[18446744073709551615,"),
                                 "[[96,\"0000000000000003", "[[18446744073709551615,\"0000000000000003")),
              HasSubstr("too large"));
  EXPECT_NE(complaint(replaced(kBody, "\"owner\":3", "\"owner\":-3")), "none");
  EXPECT_NE(complaint(replaced(kBody, "],\n", "],\n1")), "none");
}

TEST(CopyManifest, HasASegmentForTheHeaderAndEveryShard) {
  const std::vector<PlannedFile> files{{"a", "header", {{0, 6, 10}, {1, 10, 12}}}, {"b", "h", {{2, 1, 5}}}};

  const auto copies = copy_files(files, {{7, 8, 9}});

  ASSERT_EQ(copies.size(), 2u);
  EXPECT_EQ(copies[0], (CopyFile{"a", {{6, hash64("header")}, {10, 7}, {12, 8}}}));
  EXPECT_EQ(copies[1], (CopyFile{"b", {{1, hash64("h")}, {5, 9}}}));
}

}  // namespace
}  // namespace troupe::core
