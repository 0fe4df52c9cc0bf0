// How long the check of all ranks' programs takes, which rank 0 does when a job joins: of a model of 96 units
// whose ranks all keep the same part of it, under ZeRO-3, alone and cut into eight along "tp" with operations
// declared.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "actors/planes/step/training_plan.hpp"
#include "core/check.hpp"
#include "core/program/check_programs.hpp"
#include "core/program/job_programs.hpp"
#include "core/program/job_slices.hpp"

namespace troupe::apps {
namespace {

constexpr std::uint32_t kUnits = 96;

actors::TrainingPlan plan_of(int ranks, int tensor_parallel) {
  core::TrainingOptions options;
  options.strategy = core::Strategy::zero3;
  options.tensor_parallel = tensor_parallel;
  options.lanes = ranks / tensor_parallel;
  std::vector<core::ParameterSpec> specs;
  std::vector<core::DeclaredOperation> operations;
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(tensor_parallel), 64);
  for (std::uint32_t unit = 0; unit < kUnits; ++unit) {
    for (const char* name : {"attention", "projection", "up", "down"}) {
      specs.push_back({fmt::format("layers.{}.{}", unit, name), {1024, 256}});
      specs.back().unit = core::UnitIndex{unit};
    }
    if (tensor_parallel == 1) continue;
    for (const auto pass : {core::Pass::forward, core::Pass::backward}) {
      operations.insert(operations.end(), 2,
                        {"tp", core::CollectiveKind::all_reduce, core::DType::f32, counts, false, pass,
                         core::UnitIndex{unit}});
    }
  }
  return actors::plan_training(std::move(specs), std::move(options), {ranks}, {}, {}, operations).value();
}

void check(benchmark::State& state, int tensor_parallel) {
  const auto plan = plan_of(static_cast<int>(state.range(0)), tensor_parallel);
  std::size_t representatives = 0;
  for (auto _ : state) {
    const auto all = core::plan_all(plan.inputs).value();
    std::vector<const core::Program*> programs;
    for (std::int32_t rank = 0; rank < plan.world.value; ++rank) {
      std::size_t place = 0;
      const auto coordinates = plan.coordinates({rank});
      for (std::size_t axis = 0; axis < coordinates.size(); ++axis)
        place =
            place * static_cast<std::size_t>(all.sizes[axis]) + static_cast<std::size_t>(coordinates[axis]);
      programs.push_back(&all.programs[static_cast<std::size_t>(all.of_place[place])]);
    }
    const auto job = core::checked_slices(plan.mesh, programs);
    representatives = job.ranks.size();
    TROUPE_CHECK(core::check_programs(job).has_value(), "programs that are planned alike fit together");
  }
  state.counters["representatives"] = static_cast<double>(representatives);
}

void data_parallel(benchmark::State& state) {
  check(state, 1);
}

void with_tensor_parallel(benchmark::State& state) {
  check(state, 8);
}

BENCHMARK(data_parallel)->Arg(8)->Arg(64)->Arg(1024)->Unit(benchmark::kMillisecond);
BENCHMARK(with_tensor_parallel)->Arg(8)->Arg(64)->Arg(1024)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace troupe::apps

BENCHMARK_MAIN();
