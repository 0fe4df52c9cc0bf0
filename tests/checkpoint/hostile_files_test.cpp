#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/checkpoint/checkpoint_tool.hpp"
#include "tests/checkpoint/hostile.hpp"
#include "tests/support/child.hpp"

namespace troupe::apps {
namespace {

namespace fs = std::filesystem;

/// Commands that read a checkpoint, and what each leaves with when a file of it is not a file.
struct Reader {
  std::vector<std::string> words;  ///< PATH and OUT are replaced
  int exit_code = 1;
};

const std::vector<Reader> kReaders{
    {{"show", "PATH"}, 1},
    {{"verify", "PATH"}, 1},
    {{"verify", "--quick", "PATH"}, 1},
    {{"diff", "PATH", "PATH"}, 2},
    {{"reshard", "PATH", "OUT", "--mesh", "2"}, 1},
    {{"export", "PATH", "OUT", "--to", "dcp"}, 1},
};

void expect_refused(const Reader& reader, const std::string& path, const std::string& out, const char* word) {
  auto words = reader.words;
  for (auto& each : words) each = each == "PATH" ? path : each == "OUT" ? out : each;
  const auto end = tests::run_in_child(
      [&] {
        const Output run = run_checkpoint(words);
        const bool named = (run.out + run.err).find(word) != std::string::npos;
        if (!named) fmt::print("{}{}", run.out, run.err);
        std::fflush(stdout);
        return named ? run.exit_code : 77;
      },
      {.seconds = 20});

  EXPECT_EQ(end.exit_code, reader.exit_code)
      << words[0] << ": 142 is that it waited, 77 that it said nothing";
}

TEST(HostileFiles, PipesAndDevicesAreNamedAndNotAwaited) {
  for (const std::string file : {"manifest.json", "shard_00001_0.safetensors"}) {
    ScratchFolder directory;
    const auto path = directory.path("root/step_00000007");
    fs::create_directories(path);
    fs::copy(golden_checkpoint(), path, fs::copy_options::recursive);
    fs::remove(path + "/" + file);
    ASSERT_EQ(::mkfifo((path + "/" + file).c_str(), 0600), 0);

    for (const auto& reader : kReaders) {
      const bool is_manifest = file == "manifest.json";
      // A directory of checkpoints; one whose own manifest is a pipe is none.
      expect_refused(reader, is_manifest ? directory.path("root") : path, directory.path("out"),
                     file.c_str());
    }
  }
}

TEST(HostileFiles, AllegedlyHugeHeaderIsNotReadIntoMemory) {
  ScratchFolder directory;
  const auto path = make_checkpoint(directory.path(""), 7, {{"a", core::DType::u8, {2}, "ab"}});
  auto manifest = manifest_at(path);
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 40;
  auto& shard = manifest.tensors[0].shards[0];
  shard.begin = kHuge;
  shard.end = kHuge + 2;
  manifest.files[0].header_bytes = kHuge;
  manifest.files[0].bytes = kHuge + 2;
  const auto text = core::to_text(manifest);
  write_file(path + "/manifest.json", text);
  fs::resize_file(path + "/" + manifest.files[0].name, kHuge + 2);  // without blocks on the disk

  expect_modest({"verify", path}, text.size(), kTimesOfText);
  expect_modest({"reshard", path, directory.path("out"), "--mesh", "2"}, text.size(), kTimesOfTextToWrite);
  expect_refused({{"verify", "PATH"}, 1}, path, "", "has 1099511627776 bytes, at most 100000008 are allowed");
}

TEST(HostileFiles, PipeAmongForeignModelFilesIsNotAwaited) {
  for (const std::string file : {".metadata", "__0_0.distcp"}) {
    ScratchFolder directory;
    const auto path = directory.path("dcp");
    fs::copy(golden("interop/mesh"), path, fs::copy_options::recursive);
    ASSERT_TRUE(fs::remove(path + "/" + file));
    ASSERT_EQ(::mkfifo((path + "/" + file).c_str(), 0600), 0);

    expect_refused({{"show", "PATH"}, 1}, path, "", file.c_str());
    expect_refused({{"import", "PATH", "OUT"}, 1}, path, directory.path("out"), file.c_str());
  }
}

TEST(HostileFiles, GitLfsPointerAmongPyTorchFilesIsNamed) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, 'a') + "\nsize 700\n";
  const std::string said = " is a pointer of Git LFS, not the file itself, which has 700 bytes";
  for (const std::string file : {".metadata", "__0_0.distcp"}) {
    ScratchFolder directory;
    const auto path = directory.path("dcp");
    fs::copy(golden("interop/mesh"), path, fs::copy_options::recursive);
    write_file(path + "/" + file, pointer);

    expect_refused({{"show", "PATH"}, 1}, path, "", (file + said).c_str());
  }
  ScratchFolder directory;
  write_file(directory.path("model.pt"), pointer);

  expect_refused({{"show", "PATH"}, 1}, directory.path("model.pt"), "", ("model.pt" + said).c_str());
}

TEST(HostileFiles, LinksLeaveACheckpointOnlyOnRequest) {
  for (const std::string file : {"manifest.json", "shard_00001_0.safetensors"}) {
    ScratchFolder directory;
    const auto path = directory.path("step_00000007");
    fs::copy(golden_checkpoint(), path, fs::copy_options::recursive);
    fs::rename(path + "/" + file, directory.path("outside"));
    fs::create_symlink(directory.path("outside"), path + "/" + file);

    for (const auto& reader : kReaders) expect_refused(reader, path, directory.path("out"), "--follow-links");
    EXPECT_EQ(run_checkpoint({"show", path, "--follow-links"}).exit_code, 0) << file;
    EXPECT_EQ(run_checkpoint({"verify", path, "--follow-links"}).exit_code, 0) << file;
    EXPECT_EQ(run_checkpoint({"diff", path, golden_checkpoint(), "--follow-links"}).exit_code, 0) << file;
    EXPECT_EQ(
        run_checkpoint({"reshard", path, directory.path("out"), "--mesh", "2", "--follow-links"}).exit_code,
        0);
    EXPECT_EQ(
        run_checkpoint({"export", path, directory.path("dcp"), "--to", "dcp", "--follow-links"}).exit_code,
        0);
  }
}

TEST(HostileFiles, LinksLeavePyTorchFilesOnlyOnRequest) {
  ScratchFolder directory;
  const auto path = directory.path("dcp");
  fs::copy(golden("interop/mesh"), path, fs::copy_options::recursive);
  fs::rename(path + "/__0_0.distcp", directory.path("outside"));
  fs::create_symlink(directory.path("outside"), path + "/__0_0.distcp");

  expect_refused({{"show", "PATH"}, 1}, path, "", "__0_0.distcp");
  expect_refused({{"import", "PATH", "OUT"}, 1}, path, directory.path("out"), "__0_0.distcp");
  EXPECT_EQ(run_checkpoint({"show", path, "--follow-links"}).exit_code, 0);
  EXPECT_EQ(run_checkpoint({"import", path, directory.path("out"), "--follow-links"}).exit_code, 0);
}

}  // namespace
}  // namespace troupe::apps
