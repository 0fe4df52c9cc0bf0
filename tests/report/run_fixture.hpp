#pragma once

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "apps/report/run_record.hpp"

namespace troupe::apps::testing {

/// A folder of the test's own, gone with it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "troupe-report-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline StepRecord step_at(std::int64_t step) {
  return {.step = step,
          .seconds_since_start = 0.5 * static_cast<double>(step + 1),
          .loss = 5.0 / (1.0 + static_cast<double>(step)),
          .evaluation_loss = std::nullopt,
          .tokens_per_second = 20000,
          .step_seconds = 0.5,
          .compute_seconds = 0.4,
          .communication_seconds = 0.2,
          .exposed_communication_seconds = 0.05,
          .optimizer_seconds = 0.04,
          .other_wait_seconds = 0.01,
          .gradient_norm = 1.25,
          .learning_rate = 1e-3,
          .committed = true};
}

inline RunDescription description() {
  return {.name = "a run",
          .started_at = "2026-01-02T03:04:05Z",
          .ranks = 4,
          .steps = 10,
          .configuration = {{"strategy", "zero1"}, {"overlap", "on"}},
          .started_unix_seconds = 1767323045.25};
}

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace troupe::apps::testing
