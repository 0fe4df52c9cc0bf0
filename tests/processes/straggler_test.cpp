// A rank that is slower than the others, in a real job.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <fstream>
#include <mutex>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "tests/processes/gpt_job.hpp"
#include "tests/support/environment.hpp"

namespace troupe {
namespace {

int parent_of(int pid) {
  std::ifstream stat(fmt::format("/proc/{}/stat", pid));
  std::string number, name, state;
  int parent = 0;
  stat >> number >> name >> state >> parent;
  return parent;
}

/// A process that is stopped for two thirds of its time computes three times as long, where most of its time
/// is not spent waiting. How long it takes to be named depends on how long eight steps take. More of them
/// take TROUPE_STRAGGLERS=100.
TEST(StragglerOfAJob, IsNamedAndNobodyElse) {
  const tests::ScratchFolder folder;
  const auto text = tests::write_sample_text(folder);
  for (std::uint64_t number = 0; number < tests::number_in_environment("TROUPE_STRAGGLERS", 1); ++number) {
    std::mt19937 random(static_cast<unsigned>(number));
    const auto ranks = static_cast<int>(2 + random() % 3);
    const auto slow = static_cast<int>(random() % static_cast<unsigned>(ranks));
    const auto id = fmt::format("straggler-{}-{}", getpid(), number);
    tests::GptJob job{ranks,
                      1'000'000,
                      {"--rdzv-id", id, "--term-timeout", "10"},
                      {"--strategy", "zero2", "--layers", "6", "--width", "128", "--feed-forward", "256"}};
    const auto output = folder.path(id);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(50);
    int victim = 0;
    const auto during = [&](const std::string& so_far) {
      if (victim == 0 && tests::read_record(output).losses.size() < 10) return;
      if (victim == 0) victim = tests::process_of_rank(id, slow);
      if (victim == 0) return;  // not kill(0): that is this process's own group
      const auto now = std::chrono::steady_clock::now();
      if (now > end || so_far.find(" is slow") != std::string::npos) {
        kill(victim, SIGCONT);
        if (const int launcher = parent_of(victim); launcher > 1) kill(launcher, SIGINT);
        return;
      }
      const auto phase = now.time_since_epoch() % std::chrono::milliseconds(60);
      kill(victim, phase < std::chrono::milliseconds(40) ? SIGSTOP : SIGCONT);
    };
    const auto result =
        tests::run_command(tests::gpt_command(job, text, output), std::chrono::seconds(60), during);

    SCOPED_TRACE(fmt::format("job {}: rank {} of {}\n{}", number, slow, ranks, result.output));
    EXPECT_THAT(result.output,
                testing::HasSubstr(fmt::format("rank {} is slow and holds up the others", slow)));
    for (int other = 0; other < ranks; ++other) {
      if (other == slow) continue;
      EXPECT_THAT(result.output, testing::Not(testing::HasSubstr(fmt::format("rank {} is slow", other))));
    }
  }
}

/// Other load comes and goes on all cores. An hour of it is TROUPE_NOISE_SECONDS=3600.
TEST(StragglerOfAJob, IsNobodyWhereOtherLoadComesAndGoes) {
  const auto seconds = tests::number_in_environment("TROUPE_NOISE_SECONDS", 0);
  if (seconds == 0) GTEST_SKIP() << "set TROUPE_NOISE_SECONDS to how long the load lasts";
  const tests::ScratchFolder folder;
  const auto text = tests::write_sample_text(folder);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  std::vector<std::jthread> load;
  for (unsigned core = 0; core < std::thread::hardware_concurrency(); ++core) {
    load.emplace_back([core](const std::stop_token& stop) {
      std::mt19937 random(core);
      std::mutex mutex;
      std::unique_lock lock(mutex);
      std::condition_variable_any never;
      for (bool works = false; !stop.stop_requested(); works = !works) {
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1 + random() % 2000);
        while (works && std::chrono::steady_clock::now() < until) continue;
        if (!works) never.wait_until(lock, stop, until, [] { return false; });
      }
    });
  }
  int jobs = 0, steps = 0;
  for (std::mt19937 random(1); std::chrono::steady_clock::now() < end; ++jobs) {
    const auto strategy = std::array{"ddp", "zero1", "zero2", "zero3"}[random() % 4];
    const auto output = folder.path(fmt::format("{}", jobs));
    const tests::GptJob job{
        static_cast<int>(2 + random() % 3),
        150,
        {},
        {"--strategy", strategy, "--layers", "6", "--width", "128", "--feed-forward", "256"}};
    const auto result = tests::run_command(tests::gpt_command(job, text, output), std::chrono::hours(1));

    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, testing::Not(testing::HasSubstr(" is slow"))) << "job " << jobs << "\n"
                                                                             << result.output;
    EXPECT_THAT(result.output, testing::Not(testing::HasSubstr("flight records"))) << result.output;
    steps += static_cast<int>(tests::read_record(output).losses.size());
  }
  fmt::print("{} jobs, {} steps\n", jobs, steps);
}

}  // namespace
}  // namespace troupe
