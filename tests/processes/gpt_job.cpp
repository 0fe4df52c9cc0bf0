#include "tests/processes/gpt_job.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "apps/report/run_record.hpp"
#include "core/random.hpp"
#include "tests/support/unused_port.hpp"

namespace troupe::tests {

std::string sample_text() {
  static const char* const kWords[] = {"in ",  "the ",  "beginning ", "was ",     "word ",
                                       "and ", "with ", "light ",     "waters, ", "day. "};
  core::CounterRandom random(1, "sample text");
  std::string text;
  for (std::uint64_t i = 0; text.size() < 40'000; ++i) text += kWords[random.below(10, i)];
  return text;
}

std::string write_sample_text(const ScratchFolder& folder) {
  auto path = folder.path("text");
  std::ofstream(path, std::ios::binary) << sample_text();
  return path;
}

namespace {

std::vector<std::string> launcher_words(const GptJob& job) {
  std::vector<std::string> command = {TROUPE_BINARY, "launch", "--nproc-per-node",
                                      std::to_string(job.ranks / job.nodes)};
  if (job.nodes == 1) command.emplace_back("--standalone");
  command.insert(command.end(), job.launch_options.begin(), job.launch_options.end());
  return command;
}

/// Each node's command in a shell of its own.
std::vector<std::string> on_nodes(const GptJob& job, const std::vector<std::string>& command) {
  const auto after = [&](const std::string& flag, const std::string& otherwise) {
    const auto found = std::ranges::find(command, flag);
    return found == command.end() ? otherwise : *std::next(found);
  };
  std::vector<std::string> whole{"--rdzv-endpoint", "127.0.0.1:" + std::to_string(unused_port())};
  if (std::ranges::count(command, "--nnodes") == 0)
    whole.insert(whole.end(), {"--nnodes", std::to_string(job.nodes)});
  whole.insert(whole.end(), command.begin() + 2, command.end());
  std::string words;
  for (const std::string& word : whole) words += " '" + word + "'";
  const auto id = after("--rdzv-id", "none");
  const auto launcher = [&](int node) {
    return fmt::format("NODE={}.{} {} launch --node-rank {} {}", id, node, command[0], node, words);
  };
  std::string script;
  for (int node = 1; node < job.nodes; ++node)
    script += fmt::format("(until {}; do [ $? = 137 ] || exit; done) &\n", launcher(node));
  script += fmt::format("until {}; do code=$?; [ $code = 137 ] || break; code=0; done; wait; exit $code\n",
                        launcher(0));
  return {"/bin/sh", "-c", script};
}

}  // namespace

std::vector<std::string> gpt_command(const GptJob& job, const std::string& text, const std::string& output) {
  auto command = launcher_words(job);
  command.insert(command.end(),
                 {"--", GPT_BINARY, "--device", GPT_DEVICE, "--text", text, "--output", output});
  const auto& options = job.trainer_options;
  if (std::find(options.begin(), options.end(), "--model") == options.end())
    command.insert(command.end(), {"--preset", "tiny"});
  command.insert(command.end(), {"--lanes", "8", "--batch", "2", "--bucket-elements", "3000"});
  command.insert(command.end(), {"--steps", std::to_string(job.steps), "--evaluate-every", "0"});
  command.insert(command.end(), {"--evaluation-batches", "1", "--sample-bytes", "0"});
  command.insert(command.end(), job.trainer_options.begin(), job.trainer_options.end());
  return job.nodes == 1 ? command : on_nodes(job, command);
}

int process_of_rank(const std::string& id, int rank) {
  for (const auto& [pid, environment] : environments_with("TORCHELASTIC_RUN_ID=" + id)) {
    if (number_in(environment, "RANK") == rank) return pid;
  }
  return 0;
}

Signalled run_and_signal(const std::vector<std::string>& command, const std::string& id, int rank,
                         const std::function<bool(int pid)>& ready, int signal,
                         std::chrono::seconds patience) {
  Signalled signalled;
  int pid = 0;
  std::chrono::steady_clock::time_point moment;
  auto during = [&] {
    if (signalled.hit) return;
    if (pid == 0) pid = process_of_rank(id, rank);
    if (pid == 0 || !ready(pid)) return;
    moment = std::chrono::steady_clock::now();
    signalled.hit = kill(pid, signal) == 0;
  };
  signalled.result = run_command(command, patience, during);
  signalled.until_end = std::chrono::steady_clock::now() - moment;
  return signalled;
}

Signalled run_and_signal(const GptJob& job, const std::string& id, const std::string& text,
                         const std::string& output, int rank, std::chrono::microseconds delay, int signal) {
  std::optional<std::chrono::steady_clock::time_point> moment;
  auto ready = [&](int) {
    if (!moment) moment = std::chrono::steady_clock::now() + delay;
    return std::chrono::steady_clock::now() >= *moment;
  };
  return run_and_signal(gpt_command(job, text, output), id, rank, ready, signal);
}

GptRecord read_record(const std::string& output) {
  GptRecord found;
  auto record = apps::read_run(std::filesystem::path(output) / "run.jsonl");
  if (!record) return found;
  for (const auto& step : record->steps) found.losses.push_back(step.loss);
  for (const auto& event : record->events) {
    if (event.kind == "end") found.state = event.text;
  }
  return found;
}

void expect_same_steps(const std::string& output, const std::string& undisturbed) {
  const auto expected = apps::read_run(std::filesystem::path(undisturbed) / "run.jsonl");
  const auto record = apps::read_run(std::filesystem::path(output) / "run.jsonl");
  ASSERT_TRUE(expected && record);
  std::map<std::int64_t, double> losses;
  for (const auto& step : expected->steps) losses[step.step] = step.loss;
  for (const auto& step : record->steps) EXPECT_EQ(step.loss, losses.at(step.step)) << step.step;
  EXPECT_EQ(read_record(output).state, read_record(undisturbed).state);
}

GptRecord run_gpt(const GptJob& job, const std::string& text, const std::string& output) {
  std::filesystem::remove_all(output);
  const auto result = run_command(gpt_command(job, text, output), std::chrono::seconds(120));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return read_record(output);
}

int count_checkpoints(const std::string& folder) {
  int found = 0;
  std::error_code not_there;
  std::filesystem::directory_iterator entry(folder, not_there);
  for (; !not_there && entry != std::filesystem::directory_iterator(); entry.increment(not_there)) {
    const auto name = entry->path().filename().string();
    found += name.starts_with("step_") && name.find('.') == std::string::npos ? 1 : 0;
  }
  return found;
}

}  // namespace troupe::tests
