#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/checkpoint/checkpoint_tool.hpp"
#include "tests/support/fsync_log.hpp"

namespace troupe::apps {
namespace {

namespace fs = std::filesystem;

using testing::UnorderedElementsAreArray;
using tests::Fsync;
using tests::FsyncLog;

struct Writer {
  const char* name;
  std::vector<std::string> words;  ///< PATH and OUT are replaced
  const char* result;              ///< what becomes of OUT, which is a directory of it or itself
};

void PrintTo(const Writer& writer, std::ostream* out) {
  *out << writer.name;
}

class CheckpointDurability : public testing::TestWithParam<Writer> {};

TEST_P(CheckpointDurability, SyncsEveryByteAndNameThatIsWritten) {
  ScratchFolder directory;
  const auto root = fs::canonical(directory.path(""));
  const auto out = (root / "out").string();
  auto words = GetParam().words;
  for (auto& word : words) {
    word = word == "PATH" ? golden_checkpoint() : word == "DCP" ? golden("interop/mesh") : word;
    word = word == "OUT" ? out : word;
  }
  FsyncLog log;

  ASSERT_EQ(run_checkpoint(words).exit_code, 0);

  const auto calls = log.take();
  const auto result = out + GetParam().result;
  // They had temporary names then: what counts is the file's own name and its size, once for each.
  std::vector<std::pair<std::string, std::uint64_t>> synced;
  std::vector<std::pair<std::string, std::uint64_t>> files;
  for (const auto& [path, bytes] : calls) {
    const auto name = fs::path(path).filename().string();
    if (!fs::path(path).parent_path().filename().string().starts_with(fs::path(result).filename().string() +
                                                                      ".tmp-"))
      continue;
    synced.emplace_back(name.ends_with(".json.tmp") ? name.substr(0, name.size() - 4) : name, bytes);
  }
  for (const auto& file : fs::directory_iterator(result))
    files.emplace_back(file.path().filename().string(), file.file_size());
  EXPECT_THAT(synced, UnorderedElementsAreArray(files));
  // The names in the directory, then the directory's own.
  const auto is_staged = [&](const Fsync& call) { return call.path.starts_with(result + ".tmp-"); };
  const auto last_staged = std::find_if(calls.rbegin(), calls.rend(), is_staged);
  ASSERT_NE(last_staged, calls.rend());
  EXPECT_EQ(last_staged->path.find('/', result.size()), std::string::npos) << last_staged->path;
  const auto above = fs::path(result).parent_path().string();
  EXPECT_TRUE(
      std::any_of(last_staged.base(), calls.end(), [&](const Fsync& call) { return call.path == above; }));
}

INSTANTIATE_TEST_SUITE_P(
    Writers, CheckpointDurability,
    testing::Values(
        Writer{"Reshard", {"reshard", "PATH", "OUT", "--mesh", "2"}, "/step_00000007"},
        Writer{"Import", {"import", "DCP", "OUT", "--step", "3"}, "/step_00000003"},
        Writer{"ExportDcp", {"export", "PATH", "OUT", "--to", "dcp"}, ""},
        Writer{"ExportSafetensors", {"export", "PATH", "OUT", "--to", "dcp", "--form", "safetensors"}, ""},
        Writer{"ExportHuggingFace", {"export", "PATH", "OUT", "--to", "huggingface"}, ""}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace troupe::apps
