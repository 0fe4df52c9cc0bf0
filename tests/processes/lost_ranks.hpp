#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "apps/report/run_record.hpp"
#include "tests/processes/gpt_job.hpp"

namespace troupe::tests {

/// Jobs of four ranks in which ranks are lost while the others stay.
class LostRanks : public testing::Test {
 protected:
  LostRanks() : text_(write_sample_text(folder_)) {}

  using Pids = std::map<int, int>;  // by slot

  /// A look takes milliseconds of the processors on which the job runs.
  static constexpr std::chrono::milliseconds kBetweenLooks{20};

  /// What is done to the job, once it has recorded this many steps.
  struct Blow {
    std::size_t steps = 0;
    std::vector<int> slots;
    int signal = SIGKILL;
    /// The node whose launcher is hit, instead of its processes, which are in these slots. -1: the processes.
    int launcher_of = -1;
    std::chrono::microseconds later{};  ///< than that
  };

  struct Run {
    CommandResult result;
    Pids before;  ///< at the first blow
    Pids last;    ///< when all were there for the last time to which nothing was done
    bool hit = true;
  };

  static Pids processes_of(const std::string& id) {
    Pids pids;
    for (const auto& [pid, environment] : environments_with("TORCHELASTIC_RUN_ID=" + id)) {
      if (const auto slot = number_in(environment, "TROUPE_SLOT")) pids[*slot] = pid;
    }
    return pids;
  }

  static int launcher_of(const std::string& id, int node) {
    for (const int pid : processes_with(fmt::format("NODE={}.{}", id, node))) {
      std::string name;
      if (std::ifstream(fmt::format("/proc/{}/comm", pid)) >> name && name == "troupe") return pid;
    }
    return -1;
  }

  /// Expects that the job ends well, and that the processes to which nothing is done are there to the end.
  Run lose(GptJob job, const std::string& name, const std::vector<Blow>& blows, int save_every = 5) {
    const auto id = fmt::format("{}-{}", name, getpid());
    const auto output = folder_.path(name);
    job.launch_options.insert(job.launch_options.end(), {"--rdzv-id", id, "--restart-backoff", "0"});
    job.trainer_options.insert(job.trainer_options.end(),
                               {"--checkpoints", folder_.path(name + "-checkpoints"), "--save-every",
                                fmt::format("{}", save_every)});
    Run run;
    std::set<int> lost;
    for (const Blow& blow : blows) lost.insert(blow.slots.begin(), blow.slots.end());
    std::size_t next = 0;
    using Clock = std::chrono::steady_clock;
    Clock::time_point looked;
    const auto during = [&] {
      const bool is_due = next < blows.size() && read_record(output).losses.size() >= blows[next].steps;
      if (!is_due && Clock::now() - looked < kBetweenLooks) return;
      looked = Clock::now();
      const auto pids = processes_of(id);
      const auto is_there = [&](const auto& each) {
        return lost.contains(each.first) || pids.contains(each.first);
      };
      if (std::ranges::all_of(run.before, is_there)) run.last = pids;
      if (!is_due) return;
      const auto strikes = Clock::now() + blows[next].later;
      while (Clock::now() < strikes) continue;
      if (next == 0) run.before = pids;
      const Blow& blow = blows[next];
      for (const int slot : blow.slots) {
        const auto found = pids.find(slot);
        if (blow.launcher_of < 0) run.hit &= found != pids.end() && kill(found->second, blow.signal) == 0;
      }
      if (blow.launcher_of >= 0) run.hit &= kill(launcher_of(id, blow.launcher_of), blow.signal) == 0;
      ++next;
    };
    run.result = run_command(gpt_command(job, text_, output), patience_, during);
    EXPECT_TRUE(run.hit && next == blows.size()) << run.result.output;
    EXPECT_EQ(run.result.exit_code, 0) << run.result.output;
    EXPECT_TRUE(processes_with("TORCHELASTIC_RUN_ID=" + id).empty());
    EXPECT_TRUE(segments_with(id).empty());
    for (const auto& [slot, pid] : run.before)
      EXPECT_TRUE(lost.contains(slot) || run.last[slot] == pid) << "slot " << slot << "\n"
                                                                << run.result.output;
    return run;
  }

  /// The number of steps in the record that were taken again.
  int steps_taken_again(const std::string& name) const {
    std::map<std::int64_t, int> taken;
    const auto record = apps::read_run(std::filesystem::path(folder_.path(name)) / "run.jsonl");
    EXPECT_TRUE(record.has_value());
    int again = 0;
    if (!record) return again;
    for (const auto& step : record->steps) again += taken[step.step]++ > 0 ? 1 : 0;
    for (std::int64_t step = 0; step < record->description.steps; ++step)
      EXPECT_EQ(taken.count(step), 1u) << "step " << step << " is not in the record";
    return again;
  }

  void expect_bits(const std::string& name, int steps = 60) {
    const auto undisturbed = folder_.path(fmt::format("undisturbed-{}", steps));
    if (!std::filesystem::exists(undisturbed)) run_gpt({4, steps, {}, {}}, text_, undisturbed);
    expect_same_steps(folder_.path(name), undisturbed);
  }

  ScratchFolder folder_;
  std::string text_;
  std::chrono::seconds patience_{60};
};

}  // namespace troupe::tests
