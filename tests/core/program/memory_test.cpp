#include "core/program/memory.hpp"

#include <gtest/gtest.h>

#include "core/program/job_programs.hpp"
#include "tests/core/program/some_programs.hpp"

namespace troupe::core {
namespace {

constexpr std::int64_t kSquares = 168;  // bytes of an exact square sum

/// Four units of 1024 bf16 parameters with f32 main values and two f32 moments.
TEST(ProgramMemory, OfReplicasIsAllOfEverything) {
  const auto memory = memory_of(program_of({.strategy = Strategy::ddp, .ranks = 4}));

  EXPECT_EQ(memory, (ProgramMemory{.parameters = 4 * 1024 * 2,
                                   .gradients = 4 * 1024 * 4,
                                   .main = 4 * 1024 * 4,
                                   .optimizer = 4 * 1024 * 8,
                                   .checks = 4 * kSquares + 8}));
}

// Covers shard-1, unit-40, unit-43.
TEST(ProgramMemory, FollowsThePlacements) {
  const auto of = [](Strategy strategy) { return memory_of(program_of({.strategy = strategy, .ranks = 4})); };

  const auto zero1 = of(Strategy::zero1);
  EXPECT_EQ(zero1.parameters, 4 * 1024 * 2);
  EXPECT_EQ(zero1.gradients, 4 * 1024 * 4);
  EXPECT_EQ(zero1.main, 1024 * 4);
  EXPECT_EQ(zero1.optimizer, 1024 * 8);
  EXPECT_EQ(zero1.parameter_pool + zero1.gradient_pool, 0);
  const auto zero2 = of(Strategy::zero2);
  EXPECT_EQ(zero2.parameters, 4 * 1024 * 2);
  EXPECT_EQ(zero2.gradients, 1024 * 4);
  EXPECT_EQ(zero2.gradient_pool, 2 * 1024 * 4);
  const auto zero3 = of(Strategy::zero3);
  EXPECT_EQ(zero3.at_rest(), 1024 * (2 + 4 + 4 + 8));
  EXPECT_EQ(zero3.parameter_pool, 2 * 1024 * 2);
  EXPECT_EQ(zero3.gradient_pool, 2 * 1024 * 4);
}

/// optimizer state / (inner * outer) + (gradients + weights) / inner
// Covers beyond-6.
TEST(ProgramMemory, OfFullHybridShardingCutsTheOptimizerTwice) {
  const auto memory = memory_of(program_of({.strategy = Strategy::hfsdp, .ranks = 8, .outer = 2}));

  EXPECT_EQ(memory.parameters, 4 * 1024 * 2 / 4);
  EXPECT_EQ(memory.gradients, 4 * 1024 * 4 / 4);
  EXPECT_EQ(memory.main, 4 * 1024 * 4 / 8);
  EXPECT_EQ(memory.optimizer, 4 * 1024 * 8 / 8);
}

/// What an arena of today's engine takes: a stack of full gradients, two exchanges of what comes in, and as
/// much again where several roots go out.
TEST(ProgramMemory, OfOrderedReplicasIsThatOfTheArena) {
  // Ranks hold 3, 3 and 2 of 8 lanes: two roots, two roots, one.
  auto inputs = inputs_of(SomeJob{
      .strategy = Strategy::zero1, .ranks = 3, .units = 2, .numerics = Numerics::ordered, .elements = 384});
  inputs.lanes = 8;

  const auto first = memory_of(plan_program(inputs, {0}).value());
  const auto last = memory_of(plan_program(inputs, {2}).value());

  EXPECT_EQ(first.gradients, 2 * 2 * 384 * 4) << "three lanes need two slots";
  EXPECT_EQ(first.staging, 2 * (5 * 128 * 4 + 2 * 384 * 4));
  EXPECT_EQ(last.staging, 2 * (5 * 128 * 4)) << "one root goes as it lies";
}

TEST(ProgramMemory, OwnersOfShardsKeepAboutLog2PartialShards) {
  const auto memory =
      memory_of(program_of({.ranks = 4, .units = 1, .rounds = 16, .numerics = Numerics::ordered}));

  // Sixteen rounds of four lanes each: the roots after r rounds are the bits that are set in r.
  EXPECT_EQ(memory.gradients, 4 * 256 * 4);
  EXPECT_EQ(memory.staging, 2 * 4 * 256 * 4);
}

TEST(ProgramMemory, ChunksBoundTheStaging) {
  auto inputs =
      inputs_of(SomeJob{.ranks = 4, .units = 1, .numerics = Numerics::ordered, .elements = 1 << 20});
  inputs.staging_elements = 4000;

  const auto memory = memory_of(plan_program(inputs, {0}).value());

  EXPECT_EQ(memory.staging, 2 * (4 * 1000 * 4 + 4 * 1000 * 4));
}

TEST(ProgramMemory, StagingIsBoundedWhateverTheGroupAndTheUnit) {
  for (const int ranks : {2, 64, 1024}) {
    auto inputs = inputs_of(SomeJob{.ranks = ranks, .units = 1, .numerics = Numerics::ordered});
    inputs.units[0].tensors[0].elements = std::int64_t{1} << 32;
    inputs.staging_elements = 1 << 16;

    const auto memory = memory_of(plan_program(inputs, {0}).value());

    EXPECT_EQ(memory.staging, 2 * ((1 << 16) * 4 + (1 << 16) * 4)) << ranks << " ranks";
  }
}

TEST(ProgramMemory, MainValuesThatAreParametersTakeNoRoom) {
  auto inputs = inputs_of(SomeJob{.ranks = 2});
  inputs.classes[0].storage = DType::f32;

  EXPECT_EQ(memory_of(plan_program(inputs, {0}).value()).main, 0);
}

TEST(ProgramMemory, HasTheScratchThatTheOptimizerAsksFor) {
  auto inputs = inputs_of(SomeJob{.ranks = 2});
  const auto without = memory_of(plan_program(inputs, {0}).value());
  inputs.optimizer_scratch_bytes = 12345;

  const auto memory = memory_of(plan_program(inputs, {0}).value());

  EXPECT_EQ(memory.scratch, 12345);
  EXPECT_EQ(memory.total(), without.total() + 12345);
}

TEST(ProgramMemory, FrozenParametersHaveNoGradientsAndNoOptimizer) {
  auto inputs = inputs_of(SomeJob{.ranks = 2});
  for (auto& unit : inputs.units) unit.tensors[0].trainable = false;

  const auto memory = memory_of(plan_program(inputs, {0}).value());

  EXPECT_EQ(memory, (ProgramMemory{.parameters = 4 * 512 * 2, .parameter_pool = 2 * 1024 * 2, .checks = 8}));
}

TEST(ProgramMemory, OfAHundredThousandRanksIsCountedForAll) {
  const auto job = plan_all(inputs_of(SomeJob{.strategy = Strategy::hfsdp,
                                              .ranks = 100'000,
                                              .outer = 3'125,
                                              .units = 200,
                                              .rounds = 3,
                                              .numerics = Numerics::ordered,
                                              .elements = 3'125 * 32 * 8}))
                       .value();

  for (const Program& program : job.programs) {
    const auto memory = memory_of(program);
    EXPECT_EQ(memory.parameters, 200 * 3'125 * 8 * 2);
    EXPECT_EQ(memory.optimizer, 200 * 8 * 8);
  }
}

TEST(Traffic, CountsWhatARankMustSend) {
  const ProgramEntry entry{.wire = DType::bf16, .elements = 1000, .counts = Counts::even(1000, 4)};
  const auto sent = [&](CollectiveKind kind, Counts counts) {
    auto one = entry;
    one.operation = kind;
    one.counts = std::move(counts);
    return bytes_sent(one, 0);
  };

  EXPECT_EQ(sent(CollectiveKind::reduce_scatter, Counts::even(1000, 4)), 750 * 2);
  EXPECT_EQ(sent(CollectiveKind::all_gather, Counts::even(250, 4)), 3 * 250 * 2);
  EXPECT_EQ(sent(CollectiveKind::all_reduce, Counts::even(1000, 4)), 2 * 750 * 2);
  EXPECT_EQ(sent(CollectiveKind::all_to_all, Counts::table({3000, 1000, 1000, 1000})), 3 * 750 * 2);
}

/// ZeRO-3 moves the parameters twice and the gradients once, each (n - 1) / n of them.
TEST(Traffic, OfFullShardingIsThreeTimesTheModel) {
  const auto traffic = traffic_of(program_of({.ranks = 4}));

  ASSERT_EQ(traffic.size(), 3U);
  EXPECT_EQ(traffic[0], (Traffic{{GroupKind::dp_cp, 1}, 8, 2 * 4 * 768 * 2}));
  EXPECT_EQ(traffic[1], (Traffic{{GroupKind::dp_cp, 0}, 4, 4 * 768 * 4}));
  EXPECT_EQ(traffic[2].communicator.group, GroupKind::world);
}

}  // namespace
}  // namespace troupe::core
