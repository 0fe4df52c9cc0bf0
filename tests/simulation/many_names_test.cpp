#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "actors/world/simulation/storage.hpp"
#include "core/boxes/sharded_tensor.hpp"
#include "messages/codec.hpp"
#include "tests/simulation/still_job.hpp"

namespace troupe::actors {
namespace {

constexpr int kNames = 1200;
constexpr std::size_t kNameBytes = 500;
static_assert(kNames * kNameBytes > messages::kMaxEncodedBytes / 2,
              "with an optimizer's state, too much for a message");

std::string long_name(const std::string& begin, int number) {
  auto name = fmt::format("{}.{}.", begin, number);
  return name + std::string(kNameBytes - name.size(), 'n');
}

/// How a model is shared by two ranks which know each other's parameters from messages only.
struct Halves {
  int pipeline = 1;
  int experts = 1;

  friend std::ostream& operator<<(std::ostream& out, const Halves& of) {
    return out << (of.pipeline > 1 ? "OfAPipeline" : "OfExperts");
  }
};

StillRank half_of(const Halves& halves, core::Rank rank) {
  StillRank half;
  auto& training = half.session.training;
  training.pipeline_parallel = halves.pipeline;
  training.expert_parallel = halves.experts;
  training.lanes = 2;
  training.bucket_elements = 1 << 20;
  half.first_value = static_cast<float>(kNames * rank.value);
  for (int number = 0; number < kNames; ++number) {
    half.parameters.push_back({long_name(fmt::format("half.{}", rank.value), number), {1}});
    half.parameters.back().is_expert = halves.experts > 1;
  }
  return half;
}

class ManyNames : public testing::TestWithParam<Halves> {};

TEST_P(ManyNames, OfTheOtherHalvesParametersFitIntoARestore) {
  SimulatedStorage disk({});
  SimulationOptions simulation;
  simulation.ranks = {2};
  simulation.storage = &disk;

  const auto saved = simulate_job<StillValues>(
      simulation, [&](SimulatedRank& rank) { return save_still(rank, half_of(GetParam(), rank.rank())); });
  const auto restored = simulate_job<StillValues>(simulation, [&](SimulatedRank& rank) {
    auto half = half_of(GetParam(), rank.rank());
    half.first_value = -1;
    return restore_still(rank, half);
  });

  ASSERT_EQ(problems_of(saved.report), "");
  ASSERT_EQ(problems_of(restored.report), "");
  EXPECT_EQ(restored.ranks, saved.ranks);
  EXPECT_EQ(restored.ranks[1].front(), static_cast<float>(kNames));
}

INSTANTIATE_TEST_SUITE_P(Halves, ManyNames, testing::Values(Halves{2, 1}, Halves{1, 2}),
                         testing::PrintToStringParamName());

TEST(ManyNamesOfTheTrainers, OwnTensorsFitIntoARestore) {
  constexpr int kTensors = 2500;
  SimulatedStorage disk({});
  SimulationOptions simulation;
  simulation.ranks = {2};
  simulation.storage = &disk;
  std::vector<std::vector<float>> memory(2);
  const auto rank_with_tensors = [&](core::Rank rank) {
    StillRank still;
    still.parameters = {{"w", {4}}};
    auto& own = memory[static_cast<std::size_t>(rank.value)];
    for (int number = 0; number < kTensors; ++number) {
      TrainerTensor tensor;
      tensor.tensor = core::ShardedTensor::from_rank_offsets(
                          long_name(fmt::format("own.{}", rank.value), number), core::DType::f32, {1})
                          .value();
      tensor.memory = gpu::view_of(std::span(own).subspan(static_cast<std::size_t>(number), 1));
      still.session.tensors.push_back(std::move(tensor));
    }
    return still;
  };

  for (auto& own : memory) own.assign(kTensors, 7);
  const auto saved = simulate_job<StillValues>(
      simulation, [&](SimulatedRank& rank) { return save_still(rank, rank_with_tensors(rank.rank())); });
  for (auto& own : memory) own.assign(kTensors, 0);
  const auto restored = simulate_job<StillValues>(
      simulation, [&](SimulatedRank& rank) { return restore_still(rank, rank_with_tensors(rank.rank())); });

  ASSERT_EQ(problems_of(saved.report), "");
  ASSERT_EQ(problems_of(restored.report), "");
  for (const auto& own : memory) EXPECT_EQ(own, std::vector<float>(kTensors, 7));
}

}  // namespace
}  // namespace troupe::actors
