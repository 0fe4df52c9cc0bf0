#include "apps/troupe/bench/load.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "actors/session/session.hpp"
#include "actors/shell/process_world.hpp"
#include "apps/command_line/say.hpp"
#include "apps/troupe/bench/children.hpp"
#include "apps/troupe/bench/layered_trainer.hpp"
#include "apps/troupe/bench/page_cache.hpp"
#include "core/errors.hpp"
#include "posix/entropy.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;

constexpr int kLayers = 16;
constexpr std::size_t kStatesPerParameter = 3;

struct Job {
  std::int64_t layer_elements = 0;
  core::Strategy strategy{};
  core::LoadMode mode = core::LoadMode::read;
  bool saves = false;  ///< otherwise it loads
  std::filesystem::path directory;
};

/// One rank: trains a step and saves, or loads. The seconds that the load took.
Result<double> run_rank(const Job& job, const actors::JobEnvironment& environment) {
  actors::ProcessWorldOptions world_options;
  world_options.environment = [environment] { return environment; };
  world_options.log = [](std::string_view) {};
  world_options.checkpoint_directory = job.directory.string();
  auto world = TRY(actors::ProcessWorld::create(std::move(world_options)));
  actors::SessionOptions options;
  options.training.strategy = job.strategy;
  options.training.bucket_elements = job.layer_elements;
  options.checkpoint.load.mode = job.mode;
  std::vector<core::ParameterSpec> parameters;
  for (int layer = 0; layer < kLayers; ++layer)
    parameters.push_back({fmt::format("layer{}", layer), {job.layer_elements}});
  auto session = TRY(actors::Session::join(*world, options, std::move(parameters)));
  const auto begin = std::chrono::steady_clock::now();
  if (job.saves) {
    LayeredTrainer trainer(*session, kLayers, 0);
    TRY(trainer.step());
    TRY(session->save());
    TRY(session->wait_saves());
    for (const auto& save : session->take_saves()) TRY(save.committed);
  } else if (!TRY(session->restore())) {
    return core::fail(Errc::not_found, "bench: there is no checkpoint to load");
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  TRY(session->leave());
  return seconds.count();
}

Result<double> run(const Job& job, int ranks) {
  actors::JobEnvironment environment;
  environment.launcher = "bench";
  environment.world = {ranks};
  environment.local_world = ranks;
  environment.job = "bench-load-" + posix::unique_name();
  environment.control_port = TRY(free_port());
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return core::fail(Errc::io, "bench: cannot make a pipe");
  Children children;
  for (int rank = 0; rank < ranks; ++rank) {
    environment.rank = {rank};
    environment.local_rank = rank;
    TRY(children.start([&] {
      const auto seconds = run_rank(job, environment);
      if (!seconds) say_error(fmt::format("bench: rank {}", rank), seconds.error().message);
      if (seconds && rank == 0 && write(ends[1], &*seconds, sizeof(*seconds)) != sizeof(*seconds)) return 1;
      return seconds ? 0 : 1;
    }));
  }
  close(ends[1]);
  double seconds = 0;
  const bool good = children.wait();
  const bool whole = read(ends[0], &seconds, sizeof(seconds)) == static_cast<ssize_t>(sizeof(seconds));
  close(ends[0]);
  if (!good || !whole) return core::fail(Errc::internal, "bench: a rank failed; its error is above");
  return seconds;
}

Result<LoadTime> measure(Job job, int ranks, bool cached, int repeats) {
  std::vector<double> reads, exchanges;
  for (int i = 0; i < repeats; ++i) {
    for (auto mode : {core::LoadMode::read, core::LoadMode::exchange}) {
      if (!cached) forget_all(job.directory);
      job.mode = mode;
      (mode == core::LoadMode::read ? reads : exchanges).push_back(TRY(run(job, ranks)));
    }
  }
  return LoadTime{ranks, job.strategy, cached, median(reads), median(exchanges)};
}

}  // namespace

Result<std::vector<LoadTime>> measure_loads(const LoadBench& bench) {
  const auto elements =
      static_cast<std::int64_t>(bench.bytes / kStatesPerParameter / sizeof(float) / kLayers);
  const bool good = std::all_of(bench.ranks.begin(), bench.ranks.end(), [](int ranks) { return ranks > 0; });
  if (elements < 1 || bench.repeats < 1 || !good)
    return core::fail(Errc::invalid_argument,
                      "bench: at least {} bytes of state, one rank and one repeat are needed",
                      kLayers * kStatesPerParameter * sizeof(float));
  std::error_code ignored;
  if (!bench.directory.empty() && !std::filesystem::is_directory(bench.directory, ignored))
    return core::fail(Errc::not_found, "bench: {} is not a directory", bench.directory);
  std::vector<LoadTime> times;
  for (int ranks : bench.ranks) {
    for (auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
      const auto folder = TRY(TemporaryDirectory::create(bench.directory));
      Job job{elements, strategy, core::LoadMode::read, true, folder.path() / "checkpoints"};
      TRY(run(job, ranks));
      job.saves = false;
      for (bool cached : {false, true}) times.push_back(TRY(measure(job, ranks, cached, bench.repeats)));
    }
  }
  return times;
}

}  // namespace troupe::apps
