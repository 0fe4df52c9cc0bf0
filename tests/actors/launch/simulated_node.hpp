#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/launch/node_agent_shell.hpp"
#include "actors/world/simulation/event_loop.hpp"
#include "actors/world/simulation/processes.hpp"
#include "core/errors.hpp"

namespace troupe::actors::node_tests {

inline constexpr std::chrono::nanoseconds kAnHour = std::chrono::hours(1);
inline constexpr SimulatedProgram kCompletes{.lifetime = std::chrono::seconds(10)};
inline constexpr SimulatedProgram kTrains{};

inline SimulatedProgram fails_after(std::chrono::nanoseconds lifetime, ExitStatus ending = {1, 0}) {
  return {.lifetime = lifetime, .ending = ending};
}

/// What rank `rank` does in generation `generation`.
using Programs = std::function<core::Result<SimulatedProgram>(int generation, int rank)>;

/// A gang of simulated processes that writes down what its shell says.
class Node final : public Gang {
 public:
  Node(NodeAgentConfig config, Programs programs, std::uint64_t seed = 1)
      : ranks_(config.ranks),
        programs_(std::move(programs)),
        loop_(seed),
        processes_(loop_, [this](const ProcessSpec&, int) { return programs_(generation_, prepared_); }),
        shell_(config, loop_, *this) {}

  /// Waits until the agent has finished.
  void run() {
    shell_.start();
    loop_.run_until([this] { return exit_code_.has_value(); }, {.time = kAnHour, .events = 100'000});
    EXPECT_TRUE(exit_code_) << "NA-2: every wait has a deadline";
  }

  void call_at(std::chrono::nanoseconds time, std::function<void()> call) {
    loop_.after(time, std::move(call));
  }
  /// When run() has come to this time, the launcher gets the signal.
  void signal_at(std::chrono::nanoseconds time, int signal) {
    loop_.after(time, [this, signal] { shell_.signalled(signal); });
  }

  core::Result<void> begin(const StartGang& gang) override {
    EXPECT_EQ(processes_.running() - abandoned_, 0)
        << "NA-1: the gang starts only when no process of the generation before it runs";
    generation_ = gang.generation;
    began_.push_back(loop_.now());
    return cannot_begin_ ? core::fail(core::Errc::io, "no port is free") : core::Result<void>{};
  }
  core::Result<std::unique_ptr<Process>> start(ProcessPlace place,
                                               std::function<void(ExitStatus)> exited) override {
    const int rank = place.slot;
    prepared_ = rank;
    if (!place.rank) says("spare " + std::to_string(rank) + " is started");
    auto process = TRY(processes_.spawn(
        {"trainer", {"trainer"}, {"TROUPE_JOB_ID=job-7"}, {}},
        {.output = [this, rank](OutputStream stream, std::string_view bytes) { output(rank, stream, bytes); },
         .closed = [this](OutputStream) { ++closed_; },
         .exited = std::move(exited)}));
    pids_[rank] = process->pid();
    return process;
  }
  Standing standing_of(const std::vector<int>&) override { return standing_; }
  bool stood_by(int) override { return stood_by_; }
  std::vector<bool> standing_by(const std::vector<int>& slots) override {
    return std::vector<bool>(slots.size(), standing_.is_formed);
  }
  std::vector<bool> waiting_of(const std::vector<int>& slots) override {
    return std::vector<bool>(slots.size(), is_asked_);
  }
  core::Result<void> ask_to_wait(const AskToWait&) override {
    says("all are asked to wait");
    is_asked_ = true;
    return {};
  }
  core::Result<void> admitting(const AdmitSpares& admitted) override {
    says(std::to_string(admitted.slots.size()) + " ranks go on");
    generation_ = admitted.generation;
    is_asked_ = false;
    return {};
  }
  void lost_spare(const SpareLost& lost) override {
    says("spare " + std::to_string(lost.slot) + " is lost" + (lost.is_started_again ? ", for another" : ""));
  }
  core::Result<void> replacing(const ReplaceRanks& replaced) override {
    says("rank " + std::to_string(replaced.losses[0].ending.rank) + " is replaced" +
         (replaced.losses[0].remedy == Remedy::spare ? " by a spare" : ""));
    generation_ = replaced.generation;
    return {};
  }
  void stopped_while_forming() override { says("stopped while an epoch forms"); }
  void not_started(int rank, const core::Error& error) override {
    says("rank " + std::to_string(rank) + " not started: " + error.message);
  }
  void withheld(int rank, int signal) override {
    says("rank " + std::to_string(rank) + " does not handle " + signal_name(signal));
  }
  void woken(int rank) override { says("rank " + std::to_string(rank) + " goes on"); }
  std::optional<std::int64_t> committed_step() override { return step_; }
  void failed(int rank, ExitStatus status) override {
    says("rank " + std::to_string(rank) + " failed first: " + to_string(status) + ", " +
         std::to_string(processes_.signals()) + " signals sent");
  }
  void ended(const EndGeneration& end) override {
    EXPECT_FALSE(exit_code_) << "NA-3";
    for (const Ending& each : end.endings) abandoned_ += each.kind == Ending::Kind::abandoned ? 1 : 0;
    endings_ = end.endings;
    cleared_ += processes_.clear_away("job-7", "TROUPE_JOB_ID=job-7");
  }
  void finished(int exit_code) override {
    EXPECT_FALSE(exit_code_) << "NA-3: the verdict comes once";
    exit_code_ = exit_code;
  }

  std::vector<Ending::Kind> kinds() const {
    std::vector<Ending::Kind> found(static_cast<std::size_t>(ranks_), Ending::Kind::completed);
    for (const Ending& each : endings_) found[static_cast<std::size_t>(each.rank)] = each.kind;
    return found;
  }

  std::vector<std::chrono::nanoseconds> began_;  ///< when each generation began
  std::vector<std::string> said_;
  std::vector<Ending> endings_;  ///< of the last generation
  std::map<int, std::int64_t> pids_;
  std::optional<std::int64_t> step_;
  Standing standing_;
  bool stood_by_ = true;
  bool is_asked_ = false;  ///< to wait, and all do
  std::optional<int> exit_code_;
  int closed_ = 0;
  int cleared_ = 0;
  int abandoned_ = 0;
  bool cannot_begin_ = false;

  std::chrono::nanoseconds now() const { return loop_.now(); }
  bool is_quiet() const { return loop_.is_quiet(); }
  int running() const { return processes_.running(); }
  int starts() const { return processes_.started(); }
  const NodeAgentMachine& agent() const { return shell_.machine(); }

 private:
  void output(int rank, OutputStream stream, std::string_view bytes) {
    EXPECT_EQ(stream, OutputStream::err);
    says("rank " + std::to_string(rank) + " writes " + std::string(bytes));
  }
  void says(std::string what) { said_.push_back(std::move(what)); }

  int ranks_;
  Programs programs_;
  int generation_ = 0;
  int prepared_ = 0;  ///< the rank whose start was asked for last
  EventLoop loop_;
  SimulatedProcesses processes_;
  NodeAgentShell shell_;
};

}  // namespace troupe::actors::node_tests
