#include "apps/troupe/bench/checkpoint.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "actors/session/session.hpp"
#include "actors/shell/process_world.hpp"
#include "apps/command_line/say.hpp"
#include "apps/troupe/bench/children.hpp"
#include "apps/troupe/bench/layered_trainer.hpp"
#include "apps/troupe/bench/page_cache.hpp"
#include "core/errors.hpp"
#include "gpu/host/host_device.hpp"
#include "posix/entropy.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;

constexpr int kLayers = 16;
constexpr std::size_t kStatesPerParameter = 3;
constexpr std::size_t kPlainBlock = std::size_t{8} << 20;

double seconds_of(const auto& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// "VmRSS" or "VmHWM", in bytes.
std::uint64_t memory_of_process(const std::string& what) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(what + ":")) return std::stoull(line.substr(what.size() + 1)) << 10;
  }
  return 0;
}

/// The peers: a loop that does nothing but copy, write or read.
class PlainPeer {
 public:
  PlainPeer(std::uint64_t bytes, std::filesystem::path file)
      : file_(std::move(file)), source_(bytes, 1), target_(bytes, 2) {}

  double copy() {
    return seconds_of([this] { std::memcpy(target_.data(), source_.data(), source_.size()); });
  }

  Result<double> write() {
    bool good = true;
    unlink(file_.c_str());
    const double seconds = seconds_of([&] {
      const int handle = open(file_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
      good = handle >= 0;
      for (std::size_t done = 0; good && done < source_.size();) {
        const auto count =
            ::write(handle, source_.data() + done, std::min(kPlainBlock, source_.size() - done));
        good = count > 0;
        done += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
      }
      good = good && fsync(handle) == 0;
      if (handle >= 0) close(handle);
    });
    if (!good)
      return core::fail(Errc::io, "bench: cannot write {}: {}", file_.string(), std::strerror(errno));
    return seconds;
  }

  /// Into memory that nobody has touched, as that of a job which starts: so in a process of its own.
  Result<double> read() {
    bool good = true;
    forget(file_);
    auto device = TRY(gpu::open_host_device());
    const auto memory = TRY(device->allocate(target_.size()));
    const double seconds = seconds_of([&] {
      const int handle = open(file_.c_str(), O_RDONLY | O_CLOEXEC);
      good = handle >= 0;
      for (std::size_t done = 0; good && done < target_.size();) {
        const auto count =
            ::read(handle, memory.view().data + done, std::min(kPlainBlock, target_.size() - done));
        good = count > 0;
        done += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
      }
      if (handle >= 0) close(handle);
    });
    if (!good) return core::fail(Errc::io, "bench: cannot read {}: {}", file_.string(), std::strerror(errno));
    return seconds;
  }

 private:
  std::filesystem::path file_;
  std::vector<std::uint8_t> source_;
  std::vector<std::uint8_t> target_;
};

/// One rank alone, with a directory of checkpoints or without.
struct Job {
  std::unique_ptr<actors::ProcessWorld> world;
  std::unique_ptr<actors::Session> session;

  static Result<Job> join(const CheckpointBench& bench, const std::filesystem::path& checkpoints) {
    actors::JobEnvironment environment;
    environment.launcher = "bench";
    environment.world = {1};
    environment.local_world = 1;
    environment.job = "bench-checkpoint-" + posix::unique_name();
    actors::ProcessWorldOptions world;
    world.environment = [environment] { return environment; };
    world.log = [](std::string_view line) { say_note(fmt::format("bench: {}", line)); };
    world.checkpoint_directory = checkpoints.string();
    actors::SessionOptions options;
    const auto elements =
        static_cast<std::int64_t>(bench.bytes / kStatesPerParameter / sizeof(float) / kLayers);
    options.training.bucket_elements = elements;
    options.checkpoint.staging_bytes = bench.staging_bytes;
    options.checkpoint.chunk_bytes = std::min(options.checkpoint.chunk_bytes, bench.staging_bytes);
    options.checkpoint.retention.keep_last = 1;
    std::vector<core::ParameterSpec> parameters;
    for (int layer = 0; layer < kLayers; ++layer)
      parameters.push_back({fmt::format("layer{}", layer), {elements}});
    Job job;
    job.world = TRY(actors::ProcessWorld::create(std::move(world)));
    job.session = TRY(actors::Session::join(*job.world, options, std::move(parameters)));
    return job;
  }
};

Result<double> time_of_steps(LayeredTrainer& trainer, int steps) {
  Result<void> done;
  const double seconds = seconds_of([&] {
    for (int i = 0; done && i < steps; ++i) {
      if (auto outcome = trainer.step(); !outcome) done = tl::unexpected(outcome.error());
    }
  });
  if (!done) return tl::unexpected(done.error());
  return seconds;
}

Result<void> check_committed(actors::Session& session) {
  for (const auto& save : session.take_saves()) {
    if (!save.committed) return save.committed;
  }
  return {};
}

Result<CheckpointTime> measure_saves(const CheckpointBench& bench, const std::filesystem::path& folder,
                                     std::uint64_t memory_without) {
  // An update that waits for its staging shows in the step after it, at the latest in the second.
  constexpr int kSteps = 3;
  auto job = TRY(Job::join(bench, folder / "checkpoints"));
  LayeredTrainer trainer(*job.session, kLayers, bench.layer_milliseconds);
  CheckpointTime time;
  std::vector<double> plain_steps, stalls, durable;
  TRY(time_of_steps(trainer, kSteps));
  for (int i = 0; i <= bench.repeats; ++i) {
    plain_steps.push_back(TRY(time_of_steps(trainer, kSteps)));
    TRY(job.session->save());
    const double with_save = TRY(time_of_steps(trainer, kSteps));
    stalls.push_back(std::max(0.0, with_save - plain_steps.back()));
    TRY(job.session->wait_saves());
    TRY(check_committed(*job.session));
  }
  for (int i = 0; i <= bench.repeats; ++i) {
    Result<void> done;
    TRY(time_of_steps(trainer, 1));
    TRY(job.session->publish_all());
    durable.push_back(seconds_of([&] {
      auto begun = job.session->save();
      done = begun ? job.session->wait_saves() : Result<void>(tl::unexpected(begun.error()));
    }));
    TRY(done);
    TRY(check_committed(*job.session));
  }
  time.first_stall_seconds = stalls.front();
  stalls.erase(stalls.begin());
  durable.erase(durable.begin());
  time.stall_seconds = median(stalls);
  time.step_seconds = median(plain_steps) / kSteps;
  time.durable_seconds = median(durable);
  const auto peak = memory_of_process("VmHWM");
  time.peak_extra_bytes = peak > memory_without ? peak - memory_without : 0;
  TRY(job.session->leave());
  return time;
}

Result<CheckpointTime> measure_without(const CheckpointBench& bench) {
  auto job = TRY(Job::join(bench, {}));
  LayeredTrainer trainer(*job.session, kLayers, bench.layer_milliseconds);
  TRY(time_of_steps(trainer, 3));
  CheckpointTime time;
  time.peak_extra_bytes = memory_of_process("VmHWM");
  TRY(job.session->leave());
  return time;
}

Result<CheckpointTime> measure_load(const CheckpointBench& bench, const std::filesystem::path& folder) {
  auto job = TRY(Job::join(bench, folder / "checkpoints"));
  forget_all(folder / "checkpoints");
  CheckpointTime time;
  Result<std::optional<actors::Restored>> restored;
  time.load_seconds = seconds_of([&] { restored = job.session->restore(); });
  if (!restored) return tl::unexpected(restored.error());
  if (!*restored) return core::fail(Errc::not_found, "bench: there is no checkpoint to load");
  TRY(job.session->leave());
  return time;
}

Result<CheckpointTime> time_of_plain_read(PlainPeer& plain) {
  CheckpointTime time;
  time.plain_read_seconds = TRY(plain.read());
  return time;
}

/// Runs `body` in a process of its own, whose memory is its own too.
template <class Body>
Result<CheckpointTime> in_child(Body body) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return core::fail(Errc::io, "bench: cannot make a pipe");
  Children children;
  TRY(children.start([&] {
    Result<CheckpointTime> time = body();
    if (!time) say_error("bench", time.error().message);
    return time && write(ends[1], &*time, sizeof(*time)) == sizeof(*time) ? 0 : 1;
  }));
  close(ends[1]);
  CheckpointTime time;
  const bool good = children.wait();
  const bool whole = read(ends[0], &time, sizeof(time)) == static_cast<ssize_t>(sizeof(time));
  close(ends[0]);
  if (!good || !whole) return core::fail(Errc::internal, "bench: a measurement failed; its error is above");
  return time;
}

}  // namespace

Result<CheckpointTime> measure_checkpoints(const CheckpointBench& bench) {
  const auto least = kLayers * kStatesPerParameter * sizeof(float);
  if (bench.bytes < least || bench.repeats < 1 || bench.staging_bytes < (1U << 10) ||
      bench.layer_milliseconds < 0)
    return core::fail(Errc::invalid_argument,
                      "bench: at least {} bytes of state, 1 KiB for staging and one repeat are needed",
                      least);
  std::error_code ignored;
  if (!bench.directory.empty() && !std::filesystem::is_directory(bench.directory, ignored))
    return core::fail(Errc::not_found, "bench: {} is not a directory", bench.directory);
  const auto folder = TRY(TemporaryDirectory::create(bench.directory));
  const auto without = TRY(in_child([&] { return measure_without(bench); }));
  auto time = TRY(in_child([&] { return measure_saves(bench, folder.path(), without.peak_extra_bytes); }));
  PlainPeer plain(bench.bytes, folder.path() / "plain");
  std::vector<double> copies, writes, loads, reads;
  TRY(plain.write());
  plain.copy();
  // Before there are children: memory that is shared with one is copied when it is written.
  for (int i = 0; i < bench.repeats; ++i) copies.push_back(plain.copy());
  for (int i = 0; i < bench.repeats; ++i) {
    writes.push_back(TRY(plain.write()));
    loads.push_back(TRY(in_child([&] { return measure_load(bench, folder.path()); })).load_seconds);
    reads.push_back(TRY(in_child([&] { return time_of_plain_read(plain); })).plain_read_seconds);
  }
  time.bytes = bench.bytes;
  time.budget_bytes = bench.staging_bytes;
  time.memcpy_seconds = median(copies);
  time.plain_write_seconds = median(writes);
  time.load_seconds = median(loads);
  time.plain_read_seconds = median(reads);
  return time;
}

}  // namespace troupe::apps
