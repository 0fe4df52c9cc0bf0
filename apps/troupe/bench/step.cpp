#include "apps/troupe/bench/step.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>

#include "actors/planes/step/rank_program.hpp"
#include "actors/session/session.hpp"
#include "actors/shell/process_world.hpp"
#include "apps/command_line/say.hpp"
#include "apps/troupe/bench/children.hpp"
#include "apps/troupe/bench/layered_trainer.hpp"
#include "core/errors.hpp"
#include "core/program/memory.hpp"
#include "posix/entropy.hpp"

namespace troupe::apps {

namespace {

using core::Result;

constexpr int kWarmUpSteps = 10;

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<std::size_t>(share * static_cast<double>(values.size())))];
}

Result<StepTime> run_rank(const StepBench& bench, core::Strategy strategy, bool overlap,
                          actors::JobEnvironment environment) {
  actors::ProcessWorldOptions world_options;
  world_options.environment = [environment] { return environment; };
  world_options.collectives = bench.collectives;
  world_options.log = [](std::string_view) {};
  auto world = TRY(actors::ProcessWorld::create(std::move(world_options)));
  actors::SessionOptions options;
  options.training = bench.training;
  options.training.strategy = strategy;
  options.training.overlap = overlap;
  std::vector<core::ParameterSpec> parameters;
  for (int layer = 0; layer < bench.layers; ++layer) {
    parameters.push_back({fmt::format("layer{}", layer), {bench.layer_elements}});
    parameters.back().dtype = bench.dtype;
    parameters.back().gather_dtype = bench.gather_dtype;
    parameters.back().unit = core::UnitIndex{static_cast<std::uint32_t>(layer)};
  }
  auto session = TRY(actors::Session::join(*world, options, std::move(parameters)));
  LayeredTrainer trainer(*session, bench.layers, bench.layer_milliseconds,
                         bench.busy ? Computes::here : Computes::elsewhere);
  std::array<std::vector<double>, 5> samples;
  std::vector<double> latencies;
  std::uint64_t messages = 0;
  for (int step = 0; step < bench.steps + kWarmUpSteps; ++step) {
    if (step == kWarmUpSteps) messages = session->message_count();
    auto outcome = TRY(trainer.step());
    if (step < kWarmUpSteps) continue;
    auto seconds = [](std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); };
    samples[0].push_back(seconds(outcome.times.total));
    samples[1].push_back(seconds(outcome.times.compute()));
    samples[2].push_back(seconds(outcome.times.communication));
    samples[3].push_back(seconds(outcome.times.exposed));
    samples[4].push_back(seconds(outcome.times.exposed_communication));
    const auto& launches = session->launch_latencies_us();
    latencies.insert(latencies.end(), launches.begin(), launches.end());
  }
  messages = session->message_count() - messages;
  const auto device_bytes = session->device_bytes();
  std::int64_t bytes_sent = 0;
  for (const auto& one : core::traffic_of(actors::RankProgram(session->plan(), world->rank()).program()))
    bytes_sent += one.bytes;
  TRY(session->leave());
  StepTime time{
      strategy,           overlap,           median(samples[0]), median(samples[1]), median(samples[2]),
      median(samples[3]), median(samples[4])};
  time.launch_p50_microseconds = percentile(latencies, 0.5);
  time.launch_p99_microseconds = percentile(latencies, 0.99);
  time.bytes_sent = bytes_sent;
  time.launches = static_cast<std::int64_t>(latencies.size());
  time.device_bytes = device_bytes;
  time.messages_per_step = static_cast<double>(messages) / bench.steps;
  return time;
}

Result<StepTime> measure(const StepBench& bench, core::Strategy strategy, bool overlap) {
  actors::JobEnvironment environment;
  environment.launcher = "bench";
  environment.world = {bench.ranks};
  environment.local_world = bench.ranks;
  environment.job = "bench-step-" + posix::unique_name();
  environment.control_port = TRY(free_port());
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return core::fail(core::Errc::io, "bench: cannot make a pipe");
  Children children;
  for (int rank = 0; rank < bench.ranks; ++rank) {
    environment.rank = {rank};
    environment.local_rank = rank;
    TRY(children.start([&] {
      auto time = run_rank(bench, strategy, overlap, environment);
      if (!time) say_error(fmt::format("bench: rank {}", rank), time.error().message);
      if (time && rank == 0 && write(ends[1], &*time, sizeof(*time)) != sizeof(*time)) return 1;
      return time ? 0 : 1;
    }));
  }
  close(ends[1]);
  StepTime time;
  bool good = children.wait();
  bool whole = read(ends[0], &time, sizeof(time)) == static_cast<ssize_t>(sizeof(time));
  close(ends[0]);
  if (!good || !whole) return core::fail(core::Errc::internal, "bench: a rank failed; its error is above");
  return time;
}

}  // namespace

Result<std::vector<StepTime>> measure_steps(const StepBench& bench) {
  if (bench.ranks < 1 || bench.layers < 1 || bench.layer_elements < 1 || bench.steps < 1 ||
      bench.layer_milliseconds < 0) {
    return core::fail(
        core::Errc::invalid_argument,
        "bench: ranks, layers, elements and steps are at least 1, and layers take no negative time");
  }
  std::vector<StepTime> times;
  for (const auto strategy : bench.strategies) {
    for (bool overlap : {false, true}) times.push_back(TRY(measure(bench, strategy, overlap)));
  }
  return times;
}

}  // namespace troupe::apps
