#include <gtest/gtest.h>

#include <set>

#include "actors/planes/step/arena.hpp"
#include "actors/planes/step/device_memory.hpp"
#include "actors/planes/step/rank_program.hpp"
#include "core/errors.hpp"
#include "core/program/memory.hpp"
#include "gpu/host/host_device.hpp"
#include "gpu/kernels.hpp"
#include "tests/sharding/meshes.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

using tests::ShardingMesh;

/// Layers of 64 KiB, so that what is rounded up for alignment does not count.
TinyTrainerOptions large_layers(const ShardingMesh& mesh) {
  TinyTrainerOptions options;
  options.session.training.strategy = mesh.strategy;
  options.session.training.optimizer_instances = mesh.outer;
  options.session.training.lanes = 8;
  options.session.training.bucket_elements = 20000;
  options.layers = 6;
  options.width = 3 * 1 << 12;
  options.steps = 2;
  return options;
}

class ShardedMemory : public testing::TestWithParam<ShardingMesh> {
 protected:
  static void expect_planned(const TinyTrainerOptions& options) {
    const core::WorldSize ranks{GetParam().ranks()};
    const auto plan = plan_training(tiny_parameters(options), options.session.training, ranks).value();
    SimulationOptions simulation;
    simulation.ranks = ranks;

    const auto outcome =
        simulate_job<std::size_t>(simulation, [&](SimulatedRank& rank) -> core::Result<std::size_t> {
          auto session = TRY(Session::join(rank, options.session, tiny_parameters(options)));
          const auto bytes = session->device_memory().total();
          TRY(session->leave());
          return bytes;
        });

    for (int rank = 0; rank < ranks.value; ++rank) {
      const auto planned = core::memory_of(RankProgram(plan, {rank}).program());
      const auto taken = static_cast<double>(outcome.ranks[static_cast<std::size_t>(rank)]);
      EXPECT_NEAR(taken, static_cast<double>(planned.total()), 0.01 * taken) << "rank " << rank;
    }
  }
};

// Covers unit-39, beyond-6.
TEST_P(ShardedMemory, IsWhatTheProgramSaysWithinAHundredth) {
  expect_planned(large_layers(GetParam()));
}

TEST_P(ShardedMemory, MatchesTheProgramWhenGradientsTravelAsBf16) {
  for (const auto numerics : {core::Numerics::ordered, core::Numerics::fast}) {
    for (const std::int64_t staging : {0, 5000}) {
      auto options = large_layers(GetParam());
      options.session.training.wire_dtype = core::DType::bf16;
      options.session.training.numerics = numerics;
      options.session.training.staging_elements = staging;
      expect_planned(options);
    }
  }
}

TEST_P(ShardedMemory, MatchesTheProgramWhenParametersAreGatheredInBlocks) {
  auto options = large_layers(GetParam());
  options.gather_dtype = core::DType::f8_e4m3;
  expect_planned(options);
}

/// At rest a rank of zero3 has its part of everything: 16 bytes per element of f32 with AdamW, gradients
/// included. Nobody's sum of parts is less than the whole.
// Covers unit-38.
TEST(ShardedMemory, AtRestIsOneRanksPartOfEverything) {
  for (const int ranks : {2, 4, 8}) {
    const ShardingMesh mesh{core::Strategy::zero3, 1, ranks};
    auto options = large_layers(mesh);
    options.session.training.numerics = core::Numerics::fast;
    const auto plan = plan_training(tiny_parameters(options), options.session.training, {ranks}).value();
    std::int64_t elements = 0;
    for (const auto& buffer : plan.buffers) elements += buffer.elements;

    const auto memory = core::memory_of(RankProgram(plan, {0}).program());

    EXPECT_EQ(memory.at_rest(), 16 * elements / ranks);
    EXPECT_EQ(memory.parameter_pool, 2 * 4 * plan.buckets[{0}].range.size()) << "of two layers";
  }
}

/// Muon steps whole matrices: the largest one's scratch is larger here than all else that is sharded.
TEST_P(ShardedMemory, OfMuonCountsTheScratchOfTheLargestMatrix) {
  const auto& mesh = GetParam();
  core::TrainingOptions training;
  training.strategy = mesh.strategy;
  training.optimizer_instances = mesh.outer;
  training.lanes = 8;
  training.bucket_elements = 20000;
  training.optimizer.kind = core::OptimizerKind::muon;
  std::vector<core::ParameterSpec> specs;
  for (std::uint32_t layer = 0; layer < 8; ++layer) {
    core::ParameterSpec spec{.name = fmt::format("layer{}", layer), .shape = {128, layer == 3 ? 192 : 128}};
    spec.unit = core::UnitIndex{layer};
    specs.push_back(std::move(spec));
  }
  const auto plan = plan_training(specs, training, {mesh.ranks()}).value();
  const auto device = gpu::open_host_device().value();

  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const RankProgram program(plan, {rank});
    const auto planned = core::memory_of(program.program());
    const auto taken = Arena::create(*device, plan, program).value().taken();
    EXPECT_EQ(planned.scratch, static_cast<std::int64_t>(gpu::muon_scratch_bytes({128, 192})));
    EXPECT_EQ(taken.staging, static_cast<std::size_t>(planned.staging + planned.scratch + planned.checks));
    EXPECT_NEAR(static_cast<double>(taken.total()), static_cast<double>(planned.total()),
                0.01 * static_cast<double>(planned.total()))
        << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, ShardedMemory, testing::ValuesIn(tests::sharding_meshes()),
                         [](const auto& each) { return each.param.name(); });

}  // namespace
}  // namespace troupe::actors
