#include "actors/planes/step/training_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "actors/planes/step/arena.hpp"
#include "gpu/host/host_device.hpp"

namespace troupe::actors {
namespace {

using testing::HasSubstr;

std::vector<core::ParameterSpec> three_parameters() {
  return {{"embedding", {50, 4}}, {"weight", {30, 7}}, {"bias", {30}}};
}

core::TrainingOptions eight_lanes() {
  core::TrainingOptions options;
  options.lanes = 8;
  options.bucket_elements = 150;
  return options;
}

struct Refusal {
  const char* name;
  std::function<void(std::vector<core::ParameterSpec>&, core::TrainingOptions&)> spoil;
  const char* message;

  friend std::ostream& operator<<(std::ostream& out, const Refusal& of) { return out << of.name; }
};

/// A trainer under ZeRO-3 that numbers a unit so.
auto of_unit(std::uint32_t number) {
  return [number](std::vector<core::ParameterSpec>& parameters, core::TrainingOptions& options) {
    options.strategy = core::Strategy::zero3;
    parameters[1].unit = core::UnitIndex{number};
  };
}

class PlanJob : public testing::TestWithParam<Refusal> {};

// Covers shard-9.
TEST_P(PlanJob, RefusesByName) {
  auto parameters = three_parameters();
  auto options = eight_lanes();
  GetParam().spoil(parameters, options);

  auto plan = plan_training(parameters, options, {4});

  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, core::Errc::invalid_argument);
  EXPECT_THAT(plan.error().message, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Everything, PlanJob,
    testing::Values(
        Refusal{"NoParameters", [](auto& p, auto&) { p.clear(); }, "no parameters"},
        Refusal{"AUnitBeyondAllParameters", of_unit(3),
                "parameter weight is in unit 3, but 3 parameters make units 0 to 2 at most"},
        Refusal{"AUnitWhoseCountOverflows", of_unit(0xFFFFFFFE), "parameter weight is in unit 4294967294"},
        Refusal{"TheLastNumberAsAUnit", of_unit(0xFFFFFFFF), "parameter weight is in unit 4294967295"},
        Refusal{"AnEmptyShape",
                [](auto& p, auto&) {
                  p[1].shape = {3, 0};
                },
                "parameter weight has the shape [3, 0]"},
        Refusal{"ANegativeExtent",
                [](auto& p, auto&) {
                  p[1].shape = {-3, -2};
                },
                "weight has the shape [-3, -2]"},
        Refusal{"AnIntegerParameter", [](auto& p, auto&) { p[2].dtype = core::DType::i32; }, "bias is i32"},
        Refusal{"ANameTwice", [](auto& p, auto&) { p[2].name = "weight"; },
                "two parameters are called weight"},
        Refusal{"FewerLanesThanRanks", [](auto&, auto& o) { o.lanes = 3; }, "3 lanes"},
        Refusal{"NegativeLanes", [](auto&, auto& o) { o.lanes = -1; }, "-1 lanes"},
        Refusal{"NoMicrobatches", [](auto&, auto& o) { o.microbatches = 0; }, "0 microbatches"},
        Refusal{"NoInstances", [](auto&, auto& o) { o.optimizer_instances = 0; }, "0 optimizer instances"},
        Refusal{"InstancesThatDoNotDivide", [](auto&, auto& o) { o.optimizer_instances = 3; },
                "3 optimizer instances do not divide 4 ranks"},
        Refusal{"InstancesOfDdp",
                [](auto&, auto& o) {
                  o.optimizer_instances = 2;
                  o.strategy = core::Strategy::ddp;
                },
                "ddp has none"},
        Refusal{"NarrowGradientsInOrder", [](auto&, auto& o) { o.gradients_in_parameter_dtype = true; },
                "use fast numerics"},
        Refusal{"AWireThatOverflows", [](auto&, auto& o) { o.wire_dtype = core::DType::f16; },
                "cannot be sent as f16; use f32, or bf16, which has the same range"},
        Refusal{
            "AGatherOfF32", [](auto& p, auto&) { p[1].gather_dtype = core::DType::f8_e4m3; },
            "weight cannot be gathered as f8_e4m3 because it is f32 and has no main values beside its own"},
        Refusal{"AGatherOfF16",
                [](auto& p, auto&) {
                  p[1].dtype = core::DType::f16;
                  p[1].gather_dtype = core::DType::f8_e5m2;
                },
                "it is f16, which has not the range"},
        Refusal{"AGatherOfFrozenValues",
                [](auto& p, auto&) {
                  p[1].dtype = core::DType::bf16;
                  p[1].gather_dtype = core::DType::f8_e4m3;
                  p[1].trainable = false;
                },
                "it is frozen"},
        Refusal{"AGatherInAnotherDtype",
                [](auto& p, auto&) {
                  p[1].dtype = core::DType::bf16;
                  p[1].gather_dtype = core::DType::f16;
                },
                "gather_dtype is f8_e4m3, f8_e5m2 or nothing"},
        Refusal{"AnEmptyBucket", [](auto&, auto& o) { o.bucket_elements = 0; }, "bucket"},
        Refusal{"ANegativeClipNorm", [](auto&, auto& o) { o.clip_norm = -1; }, "clipped at the norm -1"}),
    testing::PrintToStringParamName());

TEST(PlanJobStrategies, ThatShardParametersOrGradientsAskForUnits) {
  for (auto strategy :
       {core::Strategy::zero2, core::Strategy::zero3, core::Strategy::hsdp, core::Strategy::hfsdp}) {
    auto options = eight_lanes();
    options.strategy = strategy;

    auto plan = plan_training(three_parameters(), options, {4});

    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, core::Errc::invalid_argument);
    EXPECT_THAT(plan.error().message, HasSubstr(std::string(core::name_of(strategy))));
    EXPECT_THAT(plan.error().message, HasSubstr("ParameterSpec::unit"));
  }
}

TEST(TrainingPlan, HasOneLaneARankUnlessToldOtherwise) {
  auto plan = plan_training(three_parameters(), {}, {4});

  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->options.lanes, 4);
}

/// No shard cuts a block of 32, which begin with their parameter, whatever is sharded over how many ranks.
TEST(TrainingPlan, KeepsBlocksOfBlockGatheredParametersWhole) {
  for (const auto strategy : {core::Strategy::ddp, core::Strategy::zero1, core::Strategy::zero3}) {
    for (const int ranks : {1, 3, 8, 256}) {
      for (const auto optimizer : {core::OptimizerKind::adamw, core::OptimizerKind::muon}) {
        auto options = eight_lanes();
        options.strategy = strategy;
        options.lanes = ranks;
        options.optimizer.kind = optimizer;
        std::vector<core::ParameterSpec> parameters{{"a", {7, 9}}, {"b", {64, 33}}, {"c", {3, 700}}};
        for (auto& parameter : parameters) {
          parameter.dtype = core::DType::bf16;
          parameter.unit = core::UnitIndex{0};
        }
        parameters[1].gather_dtype = parameters[2].gather_dtype = core::DType::f8_e4m3;

        const auto plan = plan_training(parameters, options, {ranks}).value();

        ASSERT_EQ(plan.buffers.size(), 2U) << "with and without blocks";
        for (const std::uint32_t p : {1U, 2U}) {
          const auto& place = plan.parameters[{p}];
          EXPECT_EQ(plan.buffers[place.buffer].gathered, core::DType::f8_e4m3);
          for (int rank = 0; rank < ranks; ++rank) {
            const auto part = plan.held(core::TensorRole::optimizer, place.bucket, {rank});
            if (part.start > place.range.start && part.start < place.range.end) {
              EXPECT_EQ((part.start - place.range.start) % 32, 0);
            }
            EXPECT_EQ(part.size() % 256, 0);
          }
        }
      }
    }
  }
}

// Covers layout-10.
TEST(TrainingPlan, GivesDtypesTheirBuffersAndParametersTheirPlaces) {
  auto parameters = three_parameters();
  parameters[1].dtype = core::DType::bf16;

  auto plan = plan_training(parameters, eight_lanes(), {4});

  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->buffers.size(), 2u);
  EXPECT_EQ(plan->buffers[{1}].dtype, core::DType::bf16);
  EXPECT_EQ(plan->buffers[{1}].gradient_dtype, core::DType::f32);
  for (const auto p : plan->parameters.indices()) {
    const auto& place = plan->parameters[p];
    EXPECT_EQ(place.range.size(), parameters[p.value].elements());
    EXPECT_EQ(place.buffer, plan->buckets[place.bucket].buffer);
    EXPECT_EQ(plan->buffers[place.buffer].dtype, parameters[p.value].dtype);
    EXPECT_GE(place.range.start, plan->buckets[place.bucket].range.start);
    EXPECT_LE(place.range.end, plan->buckets[place.bucket].range.end);
  }
}

TEST(TrainingPlan, NumbersBucketsInBackwardOrderThoughDtypesAlternate) {
  const auto narrow = core::DType::bf16;
  core::TrainingOptions options;
  options.bucket_elements = 1;

  auto plan = plan_training({{"a", {4}}, {"b", {4}, narrow}, {"c", {4}}, {"d", {4}, narrow}}, options, {2});

  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->buckets.size(), 4u);
  for (std::uint32_t bucket = 0; bucket < 4; ++bucket) {
    EXPECT_EQ(plan->buckets[{bucket}].parameters, std::vector<core::ParameterIndex>{{3 - bucket}});
    EXPECT_EQ(plan->parameters[{3 - bucket}].bucket, core::BucketIndex{bucket});
  }
}

/// Σ over ranks of what they own = all elements of all parameters, once per instance of the optimizer.
// Covers buffer-15.
TEST(TrainingPlan, CoversEveryElementByOneOptimizerShardPerInstance) {
  for (int instances : {1, 2}) {
    auto options = eight_lanes();
    options.optimizer_instances = instances;
    auto plan = plan_training(three_parameters(), options, {4}).value();
    for (const auto p : plan.parameters.indices()) {
      const auto& whole = plan.parameters[p];
      std::vector<int> owners(static_cast<std::size_t>(whole.range.size()), 0);
      for (int rank = 0; rank < 4; ++rank) {
        auto shard = plan.held(core::TensorRole::optimizer, whole.bucket, {rank});
        for (auto i = std::max(shard.start, whole.range.start); i < std::min(shard.end, whole.range.end);
             ++i) {
          owners[static_cast<std::size_t>(i - whole.range.start)] += 1;
        }
      }
      EXPECT_EQ(owners, std::vector<int>(owners.size(), instances));
    }
  }
}

struct Memory {
  std::size_t elements = 0;  ///< of all buffers with their padding
  std::size_t bytes = 0;     ///< that the rank took
};

Memory memory_of(core::Strategy strategy, core::OptimizerKind kind, int ranks, core::DType dtype) {
  auto device = gpu::open_host_device().value();
  core::TrainingOptions options;
  options.strategy = strategy;
  options.optimizer.kind = kind;
  auto plan = plan_training({{"w", {1 << 14}, dtype}}, options, {ranks}).value();
  Memory memory{0, Arena::create(*device, plan, RankProgram(plan, {0})).value().taken().total()};
  for (const auto& buffer : plan.buffers) memory.elements += static_cast<std::size_t>(buffer.elements);
  return memory;
}

TEST(Arena, TakesOneRanksPartOfShardedOptimizerState) {
  for (int ranks : {1, 2, 4, 8}) {
    const auto n = static_cast<std::size_t>(ranks);
    for (auto dtype : {core::DType::f32, core::DType::bf16}) {
      // fp32 moments, and a master copy of narrow parameters.
      const std::size_t state = dtype == core::DType::f32 ? 8 : 12;
      const std::size_t state_of_sgd = dtype == core::DType::f32 ? 0 : 4;
      for (auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
        auto adam = memory_of(strategy, core::OptimizerKind::adamw, ranks, dtype);
        auto sgd = memory_of(strategy, core::OptimizerKind::sgd, ranks, dtype);
        const std::size_t parts = strategy == core::Strategy::zero1 ? n : 1;

        ASSERT_EQ(adam.elements, std::size_t{1} << 14) << "nothing is padded here";
        EXPECT_EQ(adam.bytes - sgd.bytes, (state - state_of_sgd) * adam.elements / parts);
      }
    }
  }
}

TEST(Arena, TakesWhatItsFormulaSays) {
  for (int ranks : {2, 4, 8}) {
    const auto n = static_cast<std::size_t>(ranks);
    auto memory = memory_of(core::Strategy::zero1, core::OptimizerKind::adamw, ranks, core::DType::bf16);

    const std::size_t whole = memory.elements;
    const std::size_t parameters_and_gradients = (2 + 4) * whole;
    const std::size_t optimizer = 12 * whole / n;
    const std::size_t exchanges = 2 * 4 * whole;  // two credits of all ranks' parts of one shard
    const std::size_t squares = 21 * 8;           // of one bucket
    // Square sums, the losses' sum, refusals, what is alike, wishes, the weights' sum and lanes: as much in
    // any job.
    const std::size_t verdict = 8 * (21 + 70 + 2 + 8 + 16 + 70 + 2);
    EXPECT_EQ(memory.bytes, parameters_and_gradients + optimizer + exchanges + squares + verdict);
  }
}

/// A gradient slot for each lane of the rank that is on the stack at once: log2 of them and one, at most.
TEST(Arena, KeepsGradientSlotsForTheDeepestLane) {
  for (auto [lanes, ranks, slots] :
       {std::array{1, 1, 1}, {4, 4, 1}, {8, 4, 2}, {3, 1, 2}, {4, 1, 3}, {8, 1, 4}}) {
    core::TrainingOptions options;
    options.lanes = lanes;
    auto plan = plan_training(three_parameters(), options, {ranks}).value();

    const RankProgram program(plan, {0});
    auto device = gpu::open_host_device().value();

    EXPECT_EQ(Arena::create(*device, plan, program).value().slots({0}), slots)
        << lanes << " lanes on " << ranks << " ranks";
  }
}

TEST(Arena, SaysWhatDoesNotFit) {
  auto device = gpu::open_host_device().value();
  auto plan = plan_training({{"w", {std::int64_t{1} << 44}}}, {}, {1}).value();

  auto arena = Arena::create(*device, plan, RankProgram(plan, {0}));

  ASSERT_FALSE(arena);
  EXPECT_EQ(arena.error().code, core::Errc::out_of_memory);
}

/// 16 bytes of bf16: what NCCL and the kernels' packs want. lcm(ranks, 128) gives that for 16 ranks at most.
TEST(TrainingPlan, ShardsBeginAtMultiplesOfEightElements) {
  for (const auto strategy : {core::Strategy::zero1, core::Strategy::zero3}) {
    for (const int ranks : {1, 2, 3, 6, 16, 32, 64, 96, 256}) {
      core::TrainingOptions options;
      options.strategy = strategy;
      options.bucket_elements = 1000;

      std::vector<core::ParameterSpec> parameters{{"w", {77, 31}}, {"b", {77}}, {"v", {1001}}};
      for (auto& parameter : parameters) parameter.unit = core::UnitIndex{0};
      const auto plan = plan_training(parameters, options, {ranks}).value();

      for (std::uint32_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
        for (int rank = 0; rank < ranks; ++rank) {
          const auto shard = plan.held(core::TensorRole::optimizer, {bucket}, {rank});
          EXPECT_EQ(shard.start % 8, 0) << ranks << " ranks, bucket " << bucket << ", rank " << rank;
        }
      }
    }
  }
}

}  // namespace
}  // namespace troupe::actors
