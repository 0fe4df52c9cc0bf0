#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/command.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::tests {

/// A few ten thousand bytes of made-up text, the same on every call.
std::string sample_text();
/// Writes sample_text() to a file of the folder and returns its path.
std::string write_sample_text(const ScratchFolder& folder);

struct GptJob {
  int ranks = 1;
  int steps = 20;
  std::vector<std::string> launch_options;
  std::vector<std::string> trainer_options;
  /// With more than one, each has a launcher on the loopback interface and its part of the ranks. Processes
  /// carry NODE=<run id>.<node> in their environment, and a launcher
  /// that is killed is started again.
  int nodes = 1;
};

/// `troupe launch` with the reference trainer of the smallest size, 8 lanes and small buckets. With several
/// nodes it ends as the launcher of the first does.
std::vector<std::string> gpt_command(const GptJob& job, const std::string& text, const std::string& output);

/// What a run left behind.
struct GptRecord {
  std::vector<double> losses;
  std::string state;  ///< "parameters <hash>", at the end
};
GptRecord read_record(const std::string& output);
/// However often a step was taken, it had the loss that it has in the other record, and both ended alike.
void expect_same_steps(const std::string& output, const std::string& undisturbed);
/// Runs the job into a new folder of this name, and expects that it comes to its end.
GptRecord run_gpt(const GptJob& job, const std::string& text, const std::string& output);

/// How many complete checkpoints the folder holds; none while it is not there.
int count_checkpoints(const std::string& folder);

struct Signalled {
  CommandResult result;
  bool hit = false;
  std::chrono::steady_clock::duration until_end{};  ///< from the signal to the launcher's end
};

/// Runs the job, which has this id (--rdzv-id), and sends `signal` to one rank `delay` after its process has
/// appeared.
Signalled run_and_signal(const GptJob& job, const std::string& id, const std::string& text,
                         const std::string& output, int rank, std::chrono::microseconds delay, int signal);
/// The same with a command of the caller's own, as soon as `ready` says so of the rank's process.
Signalled run_and_signal(const std::vector<std::string>& command, const std::string& id, int rank,
                         const std::function<bool(int pid)>& ready, int signal,
                         std::chrono::seconds patience = std::chrono::seconds(60));

/// The process that plays `rank` in the job with this id; 0 while there is none.
int process_of_rank(const std::string& id, int rank);

}  // namespace troupe::tests
