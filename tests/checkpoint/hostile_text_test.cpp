#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/checkpoint/sealed_text.hpp"
#include "tests/checkpoint/checkpoint_tool.hpp"
#include "tests/checkpoint/hostile.hpp"

namespace troupe::apps {
namespace {

/// A file of a header of JSON, or a directory with a manifest or an index of it.
struct CraftedText {
  const char* name;
  std::string (*make)();
};

void PrintTo(const CraftedText& crafted, std::ostream* out) {
  *out << crafted.name;
}

constexpr std::size_t kTextBytes = std::size_t{8} << 20;

std::string named_members(std::string_view value) {
  std::string text;
  for (std::size_t i = 0; text.size() < kTextBytes; ++i)
    text += fmt::format("{}\"{:x}\":{}", i == 0 ? "" : ",", i, value);
  return text;
}

std::vector<CraftedText> texts() {
  return {
      {"EmptyLists", [] { return "[" + repeated("[],", kTextBytes) + "[]]"; }},
      {"EmptyObjects", [] { return "[" + repeated("{},", kTextBytes) + "{}]"; }},
      {"ListsOfOne", [] { return "[" + repeated("[1],", kTextBytes) + "[1]]"; }},
      {"Numbers", [] { return "[" + repeated("1,", kTextBytes) + "1]"; }},
      {"Reals", [] { return "[" + repeated("{\"$double\":\"0000000000000000\"},", kTextBytes) + "1]"; }},
      {"Nesting", [] { return repeated("[", kTextBytes / 2) + repeated("]", kTextBytes / 2); }},
      {"ObjectsNesting", [] { return repeated("{\"\":", kTextBytes); }},
      {"Members", [] { return "{" + named_members("1") + "}"; }},
      {"MembersOfEmptyObjects", [] { return "{" + named_members("{}") + "}"; }},
      {"DeepNumbers",
       [] { return std::string(60, '[') + repeated("1,", kTextBytes) + "1" + std::string(60, ']'); }},
  };
}

class HostileText : public testing::TestWithParam<CraftedText> {};

TEST_P(HostileText, InAManifestTakesNoMoreThanAMultiple) {
  ScratchFolder directory;
  const auto path = make_checkpoint(directory.path(""), 1, {{"a", core::DType::u8, {2}, "ab"}});
  auto manifest = read_file(path + "/manifest.json");
  manifest.erase(manifest.rfind("\"hash\":"));
  const std::string common = "\"common\":";
  const auto place = manifest.find(common + "null");
  ASSERT_NE(place, std::string::npos);
  manifest.replace(place + common.size(), 4, GetParam().make());
  manifest = core::seal(std::move(manifest));
  write_file(path + "/manifest.json", manifest);

  expect_modest({"show", path}, manifest.size(), kTimesOfText);
  expect_modest({"show", path, "--json"}, manifest.size(), kTimesOfText);
  expect_modest({"verify", path}, manifest.size(), kTimesOfText);
  expect_modest({"reshard", path, directory.path("out"), "--mesh", "2"}, manifest.size(),
                kTimesOfTextToWrite);
}

TEST_P(HostileText, InASafetensorsHeaderTakesBoundedMemory) {
  for (const bool within : {false, true}) {
    ScratchFolder directory;
    const auto path = directory.path("model.safetensors");
    const auto header = within ? "{\"x\":" + GetParam().make() + "}" : GetParam().make();
    std::string file(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
    write_file(path, file + header);

    expect_modest({"show", path}, header.size(), kTimesOfText);
  }
}

TEST_P(HostileText, InAnIndexTakesNoMoreThanAMultiple) {
  for (const bool within : {false, true}) {
    ScratchFolder directory;
    const auto index = within ? "{\"weight_map\":" + GetParam().make() + "}" : GetParam().make();
    write_file(directory.path("model.safetensors.index.json"), index);

    expect_modest({"show", directory.path("")}, index.size(), kTimesOfText);
  }
}

INSTANTIATE_TEST_SUITE_P(All, HostileText, testing::ValuesIn(texts()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace troupe::apps
