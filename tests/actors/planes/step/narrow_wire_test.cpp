#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <numeric>

#include "core/dtype.hpp"
#include "core/errors.hpp"
#include "core/program/memory.hpp"
#include "core/random.hpp"
#include "tests/actors/planes/step/counting_backend.hpp"
#include "tests/actors/planes/step/planes.hpp"

namespace troupe::actors {
namespace {

float on_the_wire(float value) {
  return core::bf16_to_float(core::float_to_bf16(value));
}

struct Job {
  core::Strategy strategy = core::Strategy::zero1;
  core::Numerics numerics = core::Numerics::fast;
  int ranks = 4;
  int instances = 1;
  std::int64_t elements = 1000;
  std::int64_t staging = 0;
  bool average = false;
  double device_bytes_per_second = 1e12;
};

TrainingPlan plan_of(const Job& job) {
  core::TrainingOptions options;
  options.strategy = job.strategy;
  options.numerics = job.numerics;
  options.wire_dtype = core::DType::bf16;
  options.optimizer_instances = job.instances;
  options.staging_elements = job.staging;
  options.average = job.average;
  return plan_training({{"w", {job.elements}}}, options, {job.ranks}).value();
}

float gradient_of(int rank, std::int64_t element) {
  return core::CounterRandom(17, "gradient", {0}, {rank}).normal(static_cast<std::uint64_t>(element));
}

/// Lanes [first, end) by the definition of their tree.
float tree_of(int first, int end, std::int64_t element) {
  if (end - first == 1) return on_the_wire(gradient_of(first, element));
  const int half = static_cast<int>(std::bit_floor(static_cast<unsigned>(end - first - 1)));
  return tree_of(first, first + half, element) + tree_of(first + half, end, element);
}

/// In fp32, of what each rank had, rounded: of ordered numerics over the tree of lanes, otherwise in the
/// order of members, axis by axis. What all ranks get of it is rounded once more where it is sent to them.
float expected(const Job& job, std::int64_t element) {
  if (job.numerics == core::Numerics::ordered) return tree_of(0, job.ranks, element);
  const int inner = job.ranks / job.instances;
  const float factor = job.average ? 1.0F / static_cast<float>(job.ranks) : 1.0F;
  float sum = 0;
  for (int first = 0; first < job.ranks; first += inner) {
    float of_instance = on_the_wire(gradient_of(first, element) * factor);
    for (int i = 1; i < inner; ++i) of_instance += on_the_wire(gradient_of(first + i, element) * factor);
    if (job.instances == 1) {
      sum = of_instance;
    } else {
      sum = first == 0 ? on_the_wire(of_instance) : sum + on_the_wire(of_instance);
    }
  }
  return job.strategy == core::Strategy::ddp || job.instances > 1 ? on_the_wire(sum) : sum;
}

/// The bits of every element that each rank's optimizer steps, and the bytes that each sent.
void expect_rounded_once(const Job& job) {
  bytes_left.clear();
  Planes planes(plan_of(job), counting, {.bytes_per_second = job.device_bytes_per_second});
  for (int rank = 0; rank < job.ranks; ++rank) {
    auto gradient = planes[rank].tensors().gradient({0}, {rank}).as<float>();
    for (std::size_t i = 0; i < gradient.size(); ++i)
      gradient[i] = gradient_of(rank, static_cast<std::int64_t>(i));
  }

  planes.reduce();

  std::int64_t seen = 0;
  for (int rank = 0; rank < job.ranks; ++rank) {
    const auto held = planes.plan.held(core::TensorRole::optimizer, {0}, {rank});
    const auto found = planes[rank].tensors().reduced_gradient({0}).memory.as<float>();
    for (auto i = held.start; i < std::min(held.end, job.elements); ++i, ++seen) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(found[static_cast<std::size_t>(i)]),
                std::bit_cast<std::uint32_t>(expected(job, i)))
          << "rank " << rank << ", element " << i;
    }
    std::int64_t planned = 0;
    for (const auto& one : core::traffic_of(planes[rank].program().program())) {
      if (one.communicator.group != core::GroupKind::world) planned += one.bytes;
    }
    // Beside gradients the program of zero1 gathers parameters, which nobody launched here.
    for (const auto& launch : planes[rank].program().launches()) {
      if (!launch.moves_gradients() && !launch.is_verdict())
        planned -= core::bytes_sent(*launch.entry, launch.place);
    }
    EXPECT_EQ(bytes_left[rank], planned) << "rank " << rank;
  }
  EXPECT_GE(seen, job.elements);
}

// Covers buffer-13.
TEST(NarrowWire, SumsOnceRoundedValuesInFp32) {
  for (const auto numerics : {core::Numerics::fast, core::Numerics::ordered}) {
    for (const auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
      for (const int ranks : {2, 3, 4, 8, 20}) {
        for (const std::int64_t staging : {0, 50, 999}) {
          expect_rounded_once({strategy, numerics, ranks, 1, 1000, staging});
        }
      }
    }
  }
}

TEST(NarrowWire, SumsAxisByAxisOverCopiesOfTheOptimizer) {
  for (const int instances : {2, 4}) {
    for (const std::int64_t staging : {0, 50}) {
      expect_rounded_once({core::Strategy::zero1, core::Numerics::fast, 8, instances, 1000, staging, true});
    }
  }
}

/// Sums and casts that take longer than the bytes on their way must not find the next chunk in their place.
TEST(NarrowWire, KeepsChunksUntilASlowDeviceHasReadThem) {
  for (const auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
    expect_rounded_once({.strategy = strategy, .ranks = 4, .staging = 50, .device_bytes_per_second = 1e6});
  }
}

// Covers reduce-2.
RC_GTEST_PROP(NarrowWire, RoundsOnceForAnyRanksElementsAndStaging, ()) {
  Job job;
  job.strategy = *rc::gen::element(core::Strategy::ddp, core::Strategy::zero1);
  job.numerics = *rc::gen::element(core::Numerics::fast, core::Numerics::ordered);
  job.ranks = *rc::gen::inRange(2, 10);
  job.elements = *rc::gen::inRange(1, 700);
  job.staging = *rc::gen::element<std::int64_t>(0, 1, 13, 100);
  job.average = job.numerics == core::Numerics::fast && *rc::gen::arbitrary<bool>();

  expect_rounded_once(job);

  RC_ASSERT(!testing::Test::HasFailure());
}

/// Rounding each partial sum would be another number, so would none: otherwise these tests could not tell.
// Covers reduce-2.
TEST(NarrowWire, DiffersFromSumsOfMoreOrFewerRoundings) {
  int more = 0;
  int fewer = 0;
  for (std::int64_t element = 0; element < 1000; ++element) {
    float chain = on_the_wire(gradient_of(0, element));
    float exact = gradient_of(0, element);
    for (int rank = 1; rank < 4; ++rank) {
      chain = on_the_wire(chain + on_the_wire(gradient_of(rank, element)));
      exact += gradient_of(rank, element);
    }
    const float once = expected({.ranks = 4}, element);
    more += chain != once ? 1 : 0;
    fewer += exact != once ? 1 : 0;
  }
  EXPECT_GT(more, 500);
  EXPECT_GT(fewer, 500);
}

/// Half of what f32 takes: each rank sends the others their parts, and of ddp its sum to all.
TEST(NarrowWire, HalvesTheBytesOfGradients) {
  for (const auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
    const Job job{.strategy = strategy, .ranks = 4, .elements = 1024};
    const auto plan = plan_of(job);
    const RankProgram program(plan, {1});
    std::int64_t bytes = 0;
    for (const auto& launch : program.launches()) {
      if (launch.moves_gradients()) bytes += core::bytes_sent(*launch.entry, launch.place);
    }
    EXPECT_EQ(bytes, (strategy == core::Strategy::ddp ? 2 : 1) * 1024 * 3 / 4 * 2);
  }
}

}  // namespace
}  // namespace troupe::actors
