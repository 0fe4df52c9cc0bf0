#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "actors/world/simulation/storage.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

constexpr float kFirst = 8;
/// Takes far longer than what a step or a save enqueues.
constexpr gpu::TaskCost kLong{std::uint64_t{1} << 40};

struct Read {
  float after_backward = 0;  ///< the parameter, in the first step
  float at_the_end = 0;
};

/// A step takes the sum of the ranks' gradients from the parameter.
SessionOptions sums_of_gradients(core::Strategy strategy) {
  SessionOptions options;
  options.training.strategy = strategy;
  options.training.average = false;
  options.training.optimizer.kind = core::OptimizerKind::sgd;
  options.training.optimizer.weight_decay = 0;
  return options;
}

/// Enqueues a gradient of ones.
core::Result<void> backward(Session& session, gpu::StreamView compute) {
  TRY(session.before_use({0}));
  const auto gradient = TRY(session.gradient({0}));
  compute->enqueue("backward", {}, [gradient] { std::fill(gradient.begin(), gradient.end(), 1.0F); });
  return session.gradient_ready({0});
}

/// One step whose pass is only enqueued; after the last gradient it reads the parameter again, for far longer
/// than everything else takes.
core::Result<Read> train(SimulatedRank& rank, core::Strategy strategy, std::size_t element) {
  auto session = TRY(Session::join(rank, sums_of_gradients(strategy), {{"w", {256}}}));
  auto compute = TRY(session->compute_stream());
  const auto values = TRY(session->parameter({0}));
  std::fill(values.begin(), values.end(), kFirst);
  Read read;
  TRY(session->begin_step(1));
  for (core::Lane lane : session->lanes()) {
    TRY(session->begin_lane(lane));
    TRY(backward(*session, compute));
    compute->enqueue("statistics", kLong, [&] { read.after_backward = values[element]; });
    TRY(session->end_lane(0));
  }
  TRY(session->finish_step());
  TRY(session->publish_all());
  read.at_the_end = values[0];
  TRY(session->leave());
  return read;
}

class ComputeStream : public testing::TestWithParam<core::Strategy> {};

// Covers ready-9.
TEST_P(ComputeStream, ReadsParametersUnchangedAfterTheLastGradient) {
  // What a rank does not own is overwritten by the gather, the rest by the optimizer.
  for (std::size_t element : {0, 255}) {
    SimulationOptions simulation;
    simulation.ranks = {2};

    const auto outcome =
        simulate_job<Read>(simulation, [&](SimulatedRank& rank) { return train(rank, GetParam(), element); });

    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& rank : outcome.ranks) {
      EXPECT_EQ(rank.after_backward, kFirst);
      EXPECT_EQ(rank.at_the_end, kFirst - 2);
    }
  }
}

/// A step of a parameter whose first value is written by a kernel.
core::Result<float> train_from_kernel(SimulatedRank& rank, core::Strategy strategy, core::DType dtype) {
  core::ParameterSpec spec{"w", {256}};
  spec.dtype = dtype;
  auto session = TRY(Session::join(rank, sums_of_gradients(strategy), {spec}));
  auto compute = TRY(session->compute_stream());
  const gpu::Elements values{TRY(session->parameter_memory({0})), dtype};
  std::vector<float> first(256, kFirst);
  const gpu::Elements from{gpu::view_of(std::span(first)), core::DType::f32};
  compute->enqueue("delay", kLong, [] {});
  gpu::cast(from, values, compute);
  TRY(session->begin_step(1));
  for (core::Lane lane : session->lanes()) {
    TRY(session->begin_lane(lane));
    TRY(backward(*session, compute));
    TRY(session->end_lane(0));
  }
  TRY(session->finish_step());
  TRY(session->publish_all());
  const auto last = values.part(255, 1).view;
  const float value =
      dtype == core::DType::f32
          ? last.as<float>()[0]
          : std::bit_cast<float>(static_cast<std::uint32_t>(last.as<std::uint16_t>()[0]) << 16U);
  TRY(session->leave());
  return value;
}

TEST_P(ComputeStream, MayHoldKernelsThatWriteFirstValues) {
  for (const auto dtype : {core::DType::f32, core::DType::bf16}) {
    SimulationOptions simulation;
    simulation.ranks = {2};

    const auto outcome = simulate_job<float>(
        simulation, [&](SimulatedRank& rank) { return train_from_kernel(rank, GetParam(), dtype); });

    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& value : outcome.ranks) EXPECT_EQ(value, kFirst - 2) << core::name_of(dtype);
  }
}

/// A tensor of the trainer that a kernel writes shortly before a save, and what a later job finds.
core::Result<float> keep_average(SimulatedRank& rank, bool restores) {
  float average = 0;
  SessionOptions options;
  TrainerTensor tensor;
  tensor.tensor = TRY(core::ShardedTensor::from_rank_offsets("average", core::DType::f32, {1}));
  tensor.memory = gpu::view_of(std::span(&average, 1));
  options.tensors.push_back(tensor);
  auto session = TRY(Session::join(rank, options, {{"w", {4}}}));
  if (restores) {
    TRY(session->restore());
  } else {
    auto compute = TRY(session->compute_stream());
    compute->enqueue("average", kLong, [&average] { average = kFirst; });
    TRY(session->save());
    TRY(session->wait_saves());
  }
  TRY(session->leave());
  return average;
}

TEST(TrainerTensors, AreSavedAfterTheKernelsThatWriteThem) {
  SimulatedStorage disk({});
  SimulationOptions simulation;
  simulation.ranks = {1};
  simulation.storage = &disk;
  for (bool restores : {false, true}) {
    const auto outcome =
        simulate_job<float>(simulation, [&](SimulatedRank& rank) { return keep_average(rank, restores); });

    ASSERT_EQ(problems_of(outcome.report), "");
    EXPECT_EQ(outcome.ranks[0], kFirst);
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, ComputeStream,
                         testing::Values(core::Strategy::ddp, core::Strategy::zero1),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace troupe::actors
