#include "tests/checkpoint/hostile.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "tests/checkpoint/checkpoint_tool.hpp"
#include "tests/support/child.hpp"

namespace troupe::apps {

namespace fs = std::filesystem;

namespace {

constexpr unsigned kSeconds = 20;

}  // namespace

void expect_modest(const std::vector<std::string>& arguments, std::uint64_t file_bytes, std::uint64_t times) {
  const auto end = tests::run_in_child(
      [&] {
        const Output run = run_checkpoint(arguments);
        return run.err.find("gave up") == std::string::npos ? run.exit_code : 77;
      },
      {.cpu_seconds = tests::is_sanitized() ? 20 * kSeconds : kSeconds});

  EXPECT_LE(end.exit_code, 2) << arguments[0] << ": 77 is out of memory, 152 too much time";
  const auto most = kAlwaysBytes + times * file_bytes;
  if (!tests::is_sanitized()) {
    EXPECT_LE(end.grown_bytes, most) << arguments[0] << " of " << file_bytes << " bytes took "
                                     << static_cast<double>(end.grown_bytes) / static_cast<double>(file_bytes)
                                     << " times as much";
  }
  testing::Test::RecordProperty(arguments[0],
                                fmt::format("{} bytes: {} times", file_bytes, end.grown_bytes / file_bytes));
}

void expect_modest_dcp(const CraftedFiles& crafted) {
  ScratchFolder directory;
  const auto path = directory.path("dcp");
  fs::create_directory(path);
  std::uint64_t bytes = 0;
  {
    const auto [metadata, data] = crafted.make();
    write_file(path + "/.metadata", metadata);
    write_file(path + "/__0_0.distcp", data);
    bytes = metadata.size() + data.size();
  }

  expect_modest({"show", path}, bytes, kTimesOfPyTorch);
  expect_modest({"show", path, "--json"}, bytes, kTimesOfPyTorch);
  expect_modest({"import", path, directory.path("out")}, bytes, kTimesOfPyTorch);
}

std::string key_of(std::size_t i) {
  return fmt::format("k{:05x}", i);
}

}  // namespace troupe::apps
