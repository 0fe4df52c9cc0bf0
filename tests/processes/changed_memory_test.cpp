// Bits of a rank's memory that change without anybody's doing.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/processes/gpt_job.hpp"

namespace troupe {
namespace {

using tests::GptJob;

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Flips the highest bit of one byte wherever the process can write to these bytes; how often they were
/// there.
int flip_in(int pid, const std::string& bytes) {
  const int memory = open(fmt::format("/proc/{}/mem", pid).c_str(), O_RDWR | O_CLOEXEC);
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  int found = 0;
  for (std::string line; std::getline(maps, line);) {
    const auto dash = line.find('-');
    const auto first = std::stoull(line, nullptr, 16), end = std::stoull(line.substr(dash + 1), nullptr, 16);
    if (line.find(" rw") == std::string::npos || end - first > (1U << 30U)) continue;
    std::string range(end - first, '\0');
    const auto got = pread(memory, range.data(), range.size(), static_cast<off_t>(first));
    if (got <= 0) continue;
    range.resize(static_cast<std::size_t>(got));
    for (auto at = range.find(bytes); at != std::string::npos; at = range.find(bytes, at + 1)) {
      const auto changed = static_cast<char>(static_cast<unsigned char>(bytes[3]) ^ 0x80U);
      if (pwrite(memory, &changed, 1, static_cast<off_t>(first + at + 3)) == 1) ++found;
    }
  }
  close(memory);
  return found;
}

class ChangedMemory : public testing::Test {
 protected:
  ChangedMemory() : text_(tests::write_sample_text(folder_)) {}

  /// Steps change no parameter, so that it is known which bytes they are.
  GptJob job(const std::string& name) const {
    GptJob job{4, 60, {}, {}};
    job.trainer_options = {"--strategy", "ddp",      "--learning-rate",
                           "0",          "--export", folder_.path(name + "-model")};
    return job;
  }

  std::string model(const std::string& name) const {
    return content_of(folder_.path(name + "-model") + "/model.safetensors");
  }

  tests::ScratchFolder folder_;
  std::string text_;
};

TEST_F(ChangedMemory, IsNamedAndItsRankReplaced) {
  tests::run_gpt(job("undisturbed"), text_, folder_.path("undisturbed"));
  const auto whole = model("undisturbed");
  ASSERT_GT(whole.size(), 4096U);
  const auto bytes = whole.substr(whole.size() / 4 * 3 / 64 * 64, 64);

  const auto id = fmt::format("changed-{}", getpid());
  auto changed = job("changed");
  changed.launch_options = {"--rdzv-id", id, "--restart-backoff", "0", "--max-restarts", "1"};
  for (const auto* word : {"--compare-replicas-every", "4", "--save-every", "5", "--checkpoints"})
    changed.trainer_options.emplace_back(word);
  changed.trainer_options.push_back(folder_.path("checkpoints"));
  const auto output = folder_.path("changed");
  int found = 0;
  const auto result =
      tests::run_command(tests::gpt_command(changed, text_, output), std::chrono::seconds(60), [&] {
        if (found == 0 && tests::read_record(output).losses.size() >= 12)
          found = flip_in(tests::process_of_rank(id, 2), bytes);
      });

  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_GT(found, 0);
  EXPECT_THAT(result.output,
              testing::ContainsRegex("steps rank 2 has other values of '.*' than ranks 0, 1 and 3"));
  EXPECT_THAT(result.output, testing::HasSubstr("rank 2 is started again, the others stay"));
  EXPECT_EQ(model("changed"), whole);
}

}  // namespace
}  // namespace troupe
