#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "actors/simulation/simulation.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/errors.hpp"
#include "tests/apps_gpt/shared_training.hpp"
#include "tests/processes/gpt_job.hpp"
#include "tests/processes/gpt_options.hpp"

namespace troupe {
namespace {

using apps::gpt::Corpus;
using apps::gpt::DistributedTrainer;
using apps::gpt::train_shared;
using apps::gpt::Trained;
using apps::gpt::TrainerOptions;
using core::Result;
using core::Strategy;

/// How ranks share the model: tensor-parallel groups of `size` ranks, and as many of them as there are
/// data-parallel ranks, in as many slices as ranks, or in more.
struct Mesh {
  int size = 1;
  int data_parallel = 1;
  int slices = 0;
  bool sequence = false;
  Strategy strategy = Strategy::zero1;
  core::Numerics numerics = core::Numerics::ordered;
  int microbatches = 1;
  int context = 1;  ///< ranks that share each sequence
  std::size_t experts = 0;
  int expert_parallel = 1;

  int ranks() const { return size * context * data_parallel; }
  std::string name() const {
    return fmt::format("{} of {}x{}x{} ranks, {} slices{}, {} experts over {}", core::name_of(strategy), size,
                       context, data_parallel, slices, sequence ? ", sequence parallel" : "", experts,
                       expert_parallel);
  }
};

/// Heads, and norms of queries and keys, for up to four ranks.
TrainerOptions options_of(const Mesh& mesh) {
  auto options = tests::gpt_options();
  options.model.heads = 4;
  options.model.query_key_norm = true;
  options.model.vocabulary = 128;  // so that any quarter of it has letters
  if (mesh.experts > 0)
    options.model.experts = {.count = mesh.experts, .feed_forward = 16, .balance = 0.01, .z_loss = 0.001};
  options.tensor = {mesh.sequence, mesh.slices};
  auto& training = options.session.training;
  training.context_parallel = mesh.context;
  training.tensor_parallel = mesh.size;
  training.expert_parallel = mesh.expert_parallel;
  training.strategy = mesh.strategy;
  training.numerics = mesh.numerics;
  training.microbatches = mesh.microbatches;
  return options;
}

class TensorParallel : public testing::Test {
 protected:
  /// What each rank saw.
  std::vector<Trained> simulate(const Mesh& mesh, int steps = 20, actors::Storage* disk = nullptr) {
    actors::SimulationOptions simulation;
    simulation.ranks = {mesh.ranks()};
    simulation.seed = static_cast<std::uint64_t>(mesh.ranks());
    simulation.storage = disk;
    std::vector<Trained> trained(static_cast<std::size_t>(mesh.ranks()));
    const auto report = actors::Simulation(simulation).run([&](actors::SimulatedRank& rank) -> Result<void> {
      trained[static_cast<std::size_t>(rank.rank().value)] =
          TRY(train_shared(rank, options_of(mesh), corpus_, steps));
      return {};
    });
    for (const auto& violation : report.violations) ADD_FAILURE() << mesh.name() << ": " << violation;
    for (const auto& result : report.results)
      EXPECT_TRUE(result) << mesh.name() << ": " << result.error().message;
    return trained;
  }

  /// Twenty steps of `gpt` with these options.
  tests::GptRecord run_processes(int ranks, std::vector<std::string> options, const std::string& name) {
    options.insert(options.end(), {"--heads", "4"});
    return tests::run_gpt({ranks, 20, {}, options}, text_, folder_.path(name));
  }

  /// Losses, evaluation and norms, of the same job with whole layers.
  static void expect_close(const Trained& trained, const Trained& whole, const std::string& name) {
    ASSERT_EQ(trained.losses.size(), whole.losses.size());
    for (std::size_t step = 0; step < whole.losses.size(); ++step) {
      ASSERT_NEAR(trained.losses[step], whole.losses[step], 1e-5 * whole.losses[step])
          << name << ", step " << step;
      ASSERT_NEAR(trained.norms[step], whole.norms[step], 1e-4 * whole.norms[step])
          << name << ", step " << step;
    }
    ASSERT_NEAR(trained.evaluation, whole.evaluation, 1e-5 * whole.evaluation) << name;
  }

  tests::ScratchFolder folder_;
  std::string text_ = tests::write_sample_text(folder_);
  Corpus corpus_ = *Corpus::open(text_, 16);
};

// Covers finish-2, adapter-7.
TEST_F(TensorParallel, HasFixedSlicesBitsAndWholeLayersLosses) {
  const Trained whole = simulate({})[0];
  ASSERT_LT(whole.losses.back(), whole.losses.front());
  for (const int size : {2, 4}) {
    for (const bool sequence : {false, true}) {
      const Trained slices = simulate({.slices = size})[0];
      ASSERT_EQ(slices.initial, whole.initial) << "first values are those of the whole";
      expect_close(slices, whole, fmt::format("{} slices", size));
      for (const int data_parallel : {1, 2}) {
        for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero3}) {
          const Mesh mesh{size, data_parallel, 0, sequence, strategy};
          for (const auto& rank : simulate(mesh)) {
            ASSERT_EQ(rank.losses, slices.losses) << mesh.name();
            ASSERT_TRUE(rank == slices) << mesh.name();
          }
        }
      }
    }
  }
}

TEST_F(TensorParallel, AccumulatesMicrobatchesWithTheBitsOfFixedSlices) {
  Mesh mesh{.slices = 2, .microbatches = 3};
  const Trained slices = simulate(mesh, 5)[0];
  mesh.sequence = true;
  expect_close(slices, simulate({.microbatches = 3}, 5)[0], "slices");

  mesh.size = 2;
  for (const int data_parallel : {1, 2}) {
    for (const auto strategy : {Strategy::ddp, Strategy::zero1}) {
      mesh.data_parallel = data_parallel;
      mesh.strategy = strategy;
      for (const auto& rank : simulate(mesh, 5)) ASSERT_TRUE(rank == slices) << mesh.name();
    }
  }
}

/// Each rank has a part of each of its experts, and all of the router.
// Covers adapter-7.
TEST_F(TensorParallel, WithExpertsHasSlicesBitsAndWholeLayersLosses) {
  const Trained whole = simulate({.experts = 4})[0];
  ASSERT_LT(whole.losses.back(), whole.losses.front());
  for (const bool sequence : {false, true}) {
    const Trained slices = simulate({.slices = 2, .experts = 4})[0];
    ASSERT_EQ(slices.initial, whole.initial) << "first values are those of the whole";
    expect_close(slices, whole, "2 slices");
    for (const auto& [data_parallel, expert_parallel] : {std::pair{1, 1}, {2, 1}, {2, 2}, {4, 2}}) {
      for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero3}) {
        Mesh mesh{2, data_parallel, 0, sequence, strategy};
        mesh.experts = 4;
        mesh.expert_parallel = expert_parallel;
        for (const auto& rank : simulate(mesh)) {
          ASSERT_EQ(rank.losses, slices.losses) << mesh.name();
          ASSERT_TRUE(rank == slices) << mesh.name();
        }
      }
    }
  }
}

/// In fast numerics a rank adds its lanes as they come: what is summed over the group may not be what earlier
/// lanes left there.
TEST_F(TensorParallel, InFastNumericsHasTheLossesOfWholeLayers) {
  const Trained whole = simulate({.numerics = core::Numerics::fast})[0];
  for (const bool sequence : {false, true}) {
    for (const int data_parallel : {1, 2}) {
      const Mesh mesh{2, data_parallel, 0, sequence, Strategy::zero1, core::Numerics::fast};
      const auto ranks = simulate(mesh);
      expect_close(ranks[0], whole, mesh.name());
      for (const auto& rank : ranks) ASSERT_EQ(rank.losses, ranks[0].losses) << mesh.name();
    }
  }
}

// Covers model-2.
TEST_F(TensorParallel, GoesOnFromItsCheckpointsOnAnyOtherMesh) {
  const Mesh pair{.size = 2, .sequence = true};
  const Trained uninterrupted = simulate(pair, 8)[0];
  const Trained whole = simulate({}, 8)[0];
  const Mesh next[] = {{},
                       {.slices = 2},
                       {.size = 4, .sequence = true},
                       {.size = 4, .strategy = Strategy::zero3},
                       {.size = 2, .data_parallel = 2, .sequence = true, .strategy = Strategy::zero3},
                       {.size = 2, .data_parallel = 2, .sequence = true, .strategy = Strategy::ddp}};
  for (const auto& mesh : next) {
    actors::SimulatedStorage disk({});
    const Trained first = simulate(pair, 4, &disk)[0];
    for (const auto& rank : simulate(mesh, 4, &disk)) {
      ASSERT_EQ(rank.initial, first.parameters) << mesh.name();
      for (std::size_t step = 0; step < 4; ++step) {
        ASSERT_NEAR(rank.losses[step], whole.losses[4 + step], 1e-5 * whole.losses[4 + step]) << mesh.name();
      }
      const bool sums_alike = std::max(mesh.size, mesh.slices) == 2;
      if (sums_alike) {
        ASSERT_EQ(rank.parameters, uninterrupted.parameters) << mesh.name();
      }
    }
  }
}

TEST_F(TensorParallel, OfTheContextHasWholeSequencesLosses) {
  const Trained whole = simulate({})[0];
  for (const int context : {2, 4}) {
    std::optional<Trained> first;
    for (const int data_parallel : {1, 2}) {
      for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero3}) {
        const Mesh mesh{.data_parallel = data_parallel, .strategy = strategy, .context = context};
        for (const auto& rank : simulate(mesh)) {
          expect_close(rank, whole, mesh.name());
          ASSERT_EQ(rank.logits.size(), whole.logits.size()) << mesh.name();
          for (std::size_t v = 0; v < whole.logits.size(); ++v)
            ASSERT_NEAR(rank.logits[v], whole.logits[v], 1e-4) << mesh.name();
          if (!first) first = rank;
          ASSERT_TRUE(rank == *first) << mesh.name();
        }
      }
    }
  }
}

/// Attention of a rank's heads over its pieces of the sequences. Bits are those of ranks that share sequences
/// and compute whole layers in slices, on any data-parallel ranks and strategy.
TEST_F(TensorParallel, BesideContextHasSlicesBitsAndOneRanksLosses) {
  const Trained whole = simulate({})[0];
  for (const bool sequence : {false, true}) {
    const Trained slices = simulate({.slices = 2, .context = 2})[0];
    for (const int data_parallel : {1, 2}) {
      for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero3}) {
        const Mesh mesh{.size = 2,
                        .data_parallel = data_parallel,
                        .sequence = sequence,
                        .strategy = strategy,
                        .context = 2};
        for (const auto& rank : simulate(mesh)) {
          expect_close(rank, whole, mesh.name());
          ASSERT_EQ(rank.initial, whole.initial) << mesh.name();
          for (std::size_t v = 0; v < whole.logits.size(); ++v)
            ASSERT_NEAR(rank.logits[v], whole.logits[v], 1e-4) << mesh.name();
          ASSERT_EQ(rank.losses, slices.losses) << mesh.name();
          ASSERT_TRUE(rank == slices) << mesh.name();
        }
      }
    }
  }
}

TEST_F(TensorParallel, OfTheContextAccumulatesAndIsFast) {
  for (const auto numerics : {core::Numerics::ordered, core::Numerics::fast}) {
    for (const std::size_t experts : {0, 4}) {
      Mesh mesh{.numerics = numerics, .microbatches = 2, .experts = experts};
      const Trained whole = simulate(mesh, 5)[0];
      mesh.context = 2;
      mesh.data_parallel = 2;
      for (const auto& rank : simulate(mesh, 5)) expect_close(rank, whole, mesh.name());
    }
  }
}

// Covers model-16.
TEST_F(TensorParallel, OfTheContextGoesOnFromOtherMeshesCheckpoints) {
  const Mesh pair{.context = 2};
  const Trained uninterrupted = simulate(pair, 8)[0];
  const Mesh next[] = {{},
                       {.data_parallel = 2, .strategy = Strategy::zero3, .context = 4},
                       {.data_parallel = 2, .context = 2},
                       {.data_parallel = 2, .strategy = Strategy::zero3, .context = 2},
                       {.size = 2, .sequence = true, .strategy = Strategy::zero3, .context = 2},
                       {.size = 2}};
  for (const auto& mesh : next) {
    actors::SimulatedStorage disk({});
    const Trained first = simulate(pair, 4, &disk)[0];
    for (const auto& rank : simulate(mesh, 4, &disk)) {
      ASSERT_EQ(rank.initial, first.parameters) << mesh.name();
      for (std::size_t step = 0; step < 4; ++step) {
        const double expected = uninterrupted.losses[4 + step];
        ASSERT_NEAR(rank.losses[step], expected, 1e-5 * expected) << mesh.name();
      }
      if (mesh.context == 2 && mesh.size == 1) {
        ASSERT_EQ(rank.parameters, uninterrupted.parameters) << mesh.name();
      }
    }
  }
}

/// Meshes, moments and victims are drawn; a rank that waits for what will never come is a violation.
TEST_F(TensorParallel, NoRankWaitsForOneThatDied) {
  constexpr Mesh kMeshes[] = {{.size = 2, .data_parallel = 2, .sequence = true},
                              {.size = 4, .strategy = Strategy::ddp},
                              {.size = 2, .data_parallel = 2, .strategy = Strategy::zero3},
                              {.size = 2, .sequence = true, .numerics = core::Numerics::fast},
                              {.data_parallel = 2, .strategy = Strategy::zero3, .context = 2},
                              {.size = 2, .strategy = Strategy::zero1, .context = 2}};
  int failed = 0;
  for (const auto& mesh : kMeshes) {
    const auto run = [&](std::uint64_t seed, std::vector<actors::SimulatedFault> faults) {
      actors::SimulationOptions simulation;
      simulation.ranks = {mesh.ranks()};
      simulation.seed = seed;
      simulation.faults = std::move(faults);
      return actors::Simulation(simulation).run([&](actors::SimulatedRank& rank) -> Result<void> {
        TRY(train_shared(rank, options_of(mesh), corpus_, 2));
        return {};
      });
    };
    const auto length = run(0, {}).virtual_time;
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      const core::Rank victim{static_cast<int>(seed % static_cast<std::uint64_t>(mesh.ranks()))};
      const auto at = length * static_cast<int>(seed) / 12;
      const auto report = run(seed, {{actors::SimulatedFault::Kind::kill, victim, at}});
      ASSERT_EQ(report.violations, std::vector<std::string>{}) << mesh.name() << ", seed " << seed;
      for (std::size_t rank = 0; rank < report.results.size(); ++rank) {
        if (static_cast<int>(rank) != victim.value) failed += report.results[rank] ? 0 : 1;
      }
    }
  }
  EXPECT_GT(failed, 60) << "most deaths hit a job that runs";
}

TEST_F(TensorParallel, RanksThatTakeAParameterDifferentlyNameIt) {
  std::vector<std::string> errors(2);
  actors::SimulationOptions simulation;
  simulation.ranks = {2};
  actors::Simulation(simulation).run([&](actors::SimulatedRank& rank) -> Result<void> {
    auto options = options_of({.size = 2});
    if (rank.rank().value == 1) options.model.feed_forward *= 2;
    const auto trainer = DistributedTrainer::create(rank, options, corpus_);
    EXPECT_FALSE(trainer);
    if (!trainer) errors[static_cast<std::size_t>(rank.rank().value)] = trainer.error().message;
    return {};
  });
  for (const auto& error : errors)
    EXPECT_NE(error.find("model.layers.0.mlp.gate_proj.weight"), std::string::npos) << error;
}

TEST_F(TensorParallel, OfRealProcessesHasOneRanksFixedSlicesBits) {
  const auto whole = run_processes(1, {}, "whole");
  ASSERT_EQ(whole.losses.size(), 20u);

  for (const std::string size : {"2", "4"}) {
    for (const bool sequence : {false, true}) {
      const auto name = size + (sequence ? "s" : "");
      const auto slices = run_processes(1, {"--tensor-slices", size}, "slices" + name);
      std::vector<std::string> how = {"--tensor-parallel", size};
      if (sequence) how.push_back("--sequence-parallel");
      const auto ranks = run_processes(std::stoi(size), how, "ranks" + name);

      EXPECT_EQ(ranks.losses, slices.losses) << name;
      EXPECT_EQ(ranks.state, slices.state) << name;
      ASSERT_EQ(ranks.losses.size(), whole.losses.size());
      for (std::size_t step = 0; step < whole.losses.size(); ++step)
        EXPECT_NEAR(ranks.losses[step], whole.losses[step], 1e-5 * whole.losses[step]) << name;
    }
  }
  const auto experts =
      run_processes(4, {"--experts", "4", "--tensor-parallel", "2", "--expert-parallel", "2"}, "experts");
  const auto expert_slices = run_processes(1, {"--experts", "4", "--tensor-slices", "2"}, "expert-slices");
  EXPECT_EQ(experts.losses, expert_slices.losses);
  EXPECT_EQ(experts.state, expert_slices.state);
  const auto mesh =
      run_processes(4, {"--tensor-parallel", "2", "--sequence-parallel", "--strategy", "zero3"}, "mesh");
  const auto slices = run_processes(1, {"--tensor-slices", "2"}, "mesh-slices");
  EXPECT_EQ(mesh.losses, slices.losses);
  EXPECT_EQ(mesh.state, slices.state);
}

TEST_F(TensorParallel, OfRealContextProcessesHasAnyOtherRanksBits) {
  const auto whole = run_processes(1, {}, "whole");
  const auto pair = run_processes(2, {"--context-parallel", "2"}, "pair");
  const auto sharded =
      run_processes(4, {"--context-parallel", "2", "--strategy", "zero3", "--recompute"}, "sharded");
  const auto beside = run_processes(
      4, {"--context-parallel", "2", "--tensor-parallel", "2", "--sequence-parallel"}, "beside");

  EXPECT_EQ(sharded.losses, pair.losses);
  EXPECT_EQ(sharded.state, pair.state);
  ASSERT_EQ(whole.losses.size(), 20u);
  for (const auto& record : {pair, beside}) {
    ASSERT_EQ(record.losses.size(), whole.losses.size());
    for (std::size_t step = 0; step < whole.losses.size(); ++step)
      EXPECT_NEAR(record.losses[step], whole.losses[step], 1e-5 * whole.losses[step]) << step;
  }
  const std::vector<std::string> how = {"--experts",          "4", "--capacity-factor", "1",
                                        "--context-parallel", "2"};
  const auto one = run_processes(1, {how.begin(), how.begin() + 4}, "one-with-experts");
  const auto two = run_processes(2, how, "pair-with-experts");
  auto with_strategy = how;
  with_strategy.insert(with_strategy.end(), {"--strategy", "zero3"});
  const auto four = run_processes(4, with_strategy, "sharded-with-experts");
  EXPECT_EQ(four.losses, two.losses);
  EXPECT_EQ(four.state, two.state);
  ASSERT_EQ(one.losses.size(), 20u);
  ASSERT_EQ(two.losses.size(), 20u);
  for (std::size_t step = 0; step < one.losses.size(); ++step)
    EXPECT_NEAR(two.losses[step], one.losses[step], 1e-5 * one.losses[step]) << step;
}

/// Rank 0 writes what the others hand over.
TEST_F(TensorParallel, ExportsTheModelOfOneRank) {
  const auto command = [&](int ranks, std::vector<std::string> options, const std::string& to) {
    options.insert(options.end(), {"--export", folder_.path(to)});
    const auto result =
        tests::run_command(tests::gpt_command({ranks, 2, {}, options}, text_, folder_.path(to + "-run")),
                           std::chrono::seconds(60));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    std::ifstream file(folder_.path(to) + "/model.safetensors", std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const auto sliced = command(1, {"--tensor-slices", "2"}, "sliced");
  ASSERT_FALSE(sliced.empty());

  EXPECT_TRUE(command(2, {"--tensor-parallel", "2"}, "pair") == sliced);
  EXPECT_TRUE(command(4, {"--tensor-parallel", "2", "--strategy", "zero3"}, "mesh") == sliced);

  const auto experts = command(1, {"--experts", "4"}, "experts");
  ASSERT_GT(experts.size(), sliced.size());
  EXPECT_TRUE(command(2, {"--experts", "4", "--expert-parallel", "2"}, "spread") == experts);
  EXPECT_TRUE(command(2, {"--experts", "4", "--expert-parallel", "2", "--strategy", "zero3"}, "sharded") ==
              experts);
  const auto cut = command(1, {"--experts", "4", "--tensor-slices", "2"}, "cut");
  EXPECT_TRUE(command(4, {"--experts", "4", "--expert-parallel", "2", "--tensor-parallel", "2"}, "both") ==
              cut);
  const auto parts = command(2, {"--experts", "4", "--expert-tensor-parallel", "2"}, "parts");
  ASSERT_EQ(parts.size(), experts.size());
  EXPECT_TRUE(command(4,
                      {"--experts", "4", "--expert-parallel", "2", "--expert-tensor-parallel", "2",
                       "--strategy", "zero3"},
                      "spread-parts") == parts);
  std::vector<std::string> in_columns{"--experts",         "4", "--tensor-parallel",        "2",
                                      "--expert-parallel", "2", "--expert-tensor-parallel", "1"};
  const auto columns = command(2, in_columns, "columns");
  ASSERT_EQ(columns.size(), experts.size());
  in_columns.insert(in_columns.end(), {"--strategy", "zero3"});
  EXPECT_TRUE(command(4, in_columns, "sharded-columns") == columns);
  const auto shared = command(2, {"--context-parallel", "2"}, "shared");
  ASSERT_EQ(shared.size(), sliced.size());
  EXPECT_TRUE(command(4, {"--context-parallel", "2", "--strategy", "zero3"}, "sharded-sequences") == shared);
  const auto routed = command(2, {"--context-parallel", "2", "--experts", "4"}, "routed");
  EXPECT_TRUE(command(2, {"--context-parallel", "2", "--experts", "4", "--expert-parallel", "2"},
                      "spread-pair") == routed);
  EXPECT_TRUE(
      command(4,
              {"--context-parallel", "2", "--experts", "4", "--expert-parallel", "4", "--strategy", "zero3"},
              "spread-sequences") == routed);
}

}  // namespace
}  // namespace troupe
