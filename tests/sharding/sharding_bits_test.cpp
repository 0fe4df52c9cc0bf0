#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <tuple>

#include "actors/simulation/simulation.hpp"
#include "apps/gpt/options/expert_options.hpp"
#include "apps/gpt/run/distributed_trainer.hpp"
#include "core/errors.hpp"
#include "tests/apps_gpt/masked_text.hpp"
#include "tests/processes/gpt_job.hpp"
#include "tests/processes/gpt_options.hpp"
#include "tests/sharding/meshes.hpp"

namespace troupe {
namespace {

using apps::gpt::Corpus;
using apps::gpt::DistributedTrainer;
using apps::gpt::TrainerOptions;
using tests::GptRecord;
using tests::ShardingMesh;

constexpr int kSteps = 20;

/// What may change the bits of one rank; everything else may not.
struct Job {
  int steps = kSteps;
  bool tied = true;
  std::size_t layers = 2;
  std::string optimizer = "adamw";
  core::Numerics numerics = core::Numerics::ordered;
  std::size_t experts = 0;
  std::optional<double> capacity_factor;
  core::DType wire = core::DType::f32;
  bool chats = false;  ///< whose rows have very different numbers of targets
  friend auto operator<=>(const Job&, const Job&) = default;
};

/// What may not.
struct Way {
  bool overlap = true;
  int gathered_units = 2;
  std::int64_t staging_elements = 0;
  apps::gpt::Keep keep = apps::gpt::Keep::activations;
  core::LossScaling loss_scaling{};
};

TrainerOptions trainer_options(const Job& job, const ShardingMesh& mesh, const Way& way) {
  auto options = tests::gpt_options(job.optimizer);
  options.model.layers = job.layers;
  options.model.tied_embeddings = job.tied;
  EXPECT_TRUE(apps::gpt::apply_expert_options({.count = job.experts, .capacity_factor = job.capacity_factor},
                                              false, options.model));
  options.arithmetic.keep = way.keep;
  auto& training = options.session.training;
  training.strategy = mesh.strategy;
  training.optimizer_instances = mesh.outer;
  training.numerics = job.numerics;
  training.wire_dtype = job.wire;
  training.overlap = way.overlap;
  training.gathered_units = way.gathered_units;
  training.staging_elements = way.staging_elements;
  training.loss_scaling = way.loss_scaling;
  return options;
}

std::vector<GptRecord> simulate(const Job& job, const ShardingMesh& mesh, const Way& way,
                                const Corpus& corpus) {
  actors::SimulationOptions options;
  options.ranks = {mesh.ranks()};
  options.seed = static_cast<std::uint64_t>(mesh.ranks());
  std::vector<GptRecord> records(static_cast<std::size_t>(mesh.ranks()));
  actors::Simulation simulation(options);
  const auto report = simulation.run([&](actors::SimulatedRank& rank) -> core::Result<void> {
    auto trainer = TRY(DistributedTrainer::create(rank, trainer_options(job, mesh, way), corpus));
    auto& record = records[static_cast<std::size_t>(rank.rank().value)];
    for (int step = 0; step < job.steps; ++step) record.losses.push_back(TRY(trainer->step()).loss);
    record.losses.push_back(TRY(trainer->evaluate(2)).value());
    record.state = fmt::format("parameters {:016x}", TRY(trainer->parameter_hash()));
    return trainer->session().leave();
  });
  EXPECT_TRUE(report.violations.empty()) << report.violations[0];
  for (const auto& result : report.results) EXPECT_TRUE(result) << result.error().message;
  return records;
}

/// What one rank computes alone, without sharding anything.
const GptRecord& reference(const Job& job, const Corpus& corpus) {
  static std::map<Job, GptRecord> known;
  const auto found = known.find(job);
  if (found != known.end()) return found->second;
  return known[job] = simulate(job, {core::Strategy::ddp, 1, 1}, {.overlap = false}, corpus)[0];
}

class ShardingBits : public testing::TestWithParam<ShardingMesh> {
 protected:
  void expect_those_of_one_rank(const Job& job, const Way& way) {
    const Corpus& corpus = job.chats ? chats_ : corpus_;
    const auto& expected = reference(job, corpus);
    const auto steps = static_cast<std::size_t>(job.steps);
    ASSERT_EQ(expected.losses.size(), steps + 1);
    ASSERT_LT(expected.losses[steps - 1], expected.losses[0]);
    for (const auto& record : simulate(job, GetParam(), way, corpus)) {
      EXPECT_EQ(record.losses, expected.losses);
      EXPECT_EQ(record.state, expected.state);
    }
  }

  tests::ScratchFolder folder_;
  std::string text_ = tests::write_sample_text(folder_);
  Corpus corpus_ = *Corpus::open(text_, 16);
  std::string chats_path_ = folder_.path("chats.jsonl");
  Corpus chats_ = apps::gpt::open_chats(chats_path_, 16);
};

// Covers shard-1, shard-4, adapter-6, unit-18, unit-20, unit-24, beyond-5.
TEST_P(ShardingBits, AreThoseOfOneRankWithAndWithoutOverlap) {
  for (const bool overlap : {true, false}) expect_those_of_one_rank({}, {.overlap = overlap});
}

TEST_P(ShardingBits, AreOneRanksWhenBothEndsHaveOwnEmbeddings) {
  expect_those_of_one_rank({.tied = false}, {});
}

TEST_P(ShardingBits, AreOneRanksWithFewUnitsAndSmallExchanges) {
  expect_those_of_one_rank({}, {.gathered_units = 1, .staging_elements = 777});
  // Each element is an exchange of its own then.
  expect_those_of_one_rank({.steps = 4}, {.gathered_units = 3, .staging_elements = 1});
}

/// The bits of one rank that keeps all activations; backward reads parameters that were gathered once more.
// Covers unit-19.
TEST_P(ShardingBits, AreOneRanksWhenActivationsAreRecomputed) {
  for (const int gathered_units : {1, 2}) {
    expect_those_of_one_rank({.layers = 3},
                             {.gathered_units = gathered_units, .keep = apps::gpt::Keep::inputs});
  }
}

TEST_P(ShardingBits, AreOneRanksUnderPowerOfTwoLossScales) {
  expect_those_of_one_rank({}, {.loss_scaling = {.kind = core::LossScale::dynamic, .interval = 7}});
}

/// Which are not those of gradients that are never rounded.
TEST_P(ShardingBits, AreOneRanksWhenGradientsTravelAsBf16) {
  const Job job{.wire = core::DType::bf16};
  ASSERT_NE(reference(job, corpus_).state, reference({}, corpus_).state);
  for (const bool overlap : {true, false}) expect_those_of_one_rank(job, {.overlap = overlap});
  expect_those_of_one_rank(job, {.gathered_units = 1, .staging_elements = 777});
}

// Covers whole-24, shard-4.
TEST_P(ShardingBits, AreThoseOfOneRankForEveryOptimizer) {
  for (const char* optimizer : {"lion", "muon"}) expect_those_of_one_rank({.optimizer = optimizer}, {});
}

TEST_P(ShardingBits, AreThoseOfOneRankWithExperts) {
  expect_those_of_one_rank({.experts = 4}, {});
  expect_those_of_one_rank({.experts = 4, .capacity_factor = 0.75}, {});
}

// Covers finish-13.
TEST_P(ShardingBits, AreThoseOfOneRankWhenTargetsAreUneven) {
  const core::LossScaling scaling{.kind = core::LossScale::dynamic, .interval = 7};
  for (const bool overlap : {true, false})
    expect_those_of_one_rank({.chats = true}, {.overlap = overlap, .loss_scaling = scaling});
  expect_those_of_one_rank({.experts = 4, .chats = true}, {});
  expect_those_of_one_rank({.wire = core::DType::bf16, .chats = true}, {.staging_elements = 777});
}

/// Sums of f32 in any order: about 1e-7 relative per step of a tiny model.
TEST_P(ShardingBits, OfFastNumericsAreCloseToOneRanks) {
  const Job job{.numerics = core::Numerics::fast};
  const auto& expected = reference(job, corpus_);
  for (const auto& record : simulate(job, GetParam(), {}, corpus_)) {
    ASSERT_EQ(record.losses.size(), expected.losses.size());
    for (std::size_t i = 0; i < expected.losses.size(); ++i) {
      EXPECT_NEAR(record.losses[i], expected.losses[i], 1e-5 * expected.losses[i]) << "step " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Simulated, ShardingBits, testing::ValuesIn(tests::sharding_meshes()),
                         [](const auto& each) { return each.param.name(); });

class ShardingProcesses : public ShardingBits {
 protected:
  GptRecord run(const tests::GptJob& job, const std::string& output) {
    return tests::run_gpt(job, text_, output);
  }

  tests::GptJob job() const {
    const auto& mesh = GetParam();
    return {mesh.ranks(),
            kSteps,
            {},
            {"--strategy", std::string(core::name_of(mesh.strategy)), "--optimizer-instances",
             std::to_string(mesh.outer)}};
  }

  /// Also where the one that is killed has `other` options, which change no bits.
  void expect_same_bits_after_a_death(tests::GptJob uninterrupted, const std::vector<std::string>& other) {
    uninterrupted.steps = 300;
    const auto expected = run(uninterrupted, folder_.path("whole"));
    const auto id = fmt::format("sharding-{}-{}", GetParam().name(), getpid());
    auto killed = uninterrupted;
    killed.trainer_options.insert(killed.trainer_options.end(), other.begin(), other.end());
    killed.launch_options = {"--max-restarts", "1", "--rdzv-id", id};
    killed.trainer_options.insert(killed.trainer_options.end(),
                                  {"--checkpoints", folder_.path("checkpoints"), "--save-every", "20"});

    const auto outcome = tests::run_and_signal(
        tests::gpt_command(killed, text_, folder_.path("killed")), id, GetParam().ranks() - 1,
        [&](int) { return tests::count_checkpoints(folder_.path("checkpoints")) > 0; }, SIGKILL);

    ASSERT_TRUE(outcome.hit) << outcome.result.output;
    ASSERT_EQ(outcome.result.exit_code, 0) << outcome.result.output;
    const auto record = tests::read_record(folder_.path("killed"));
    EXPECT_EQ(record.state, expected.state) << outcome.result.output;
  }
};

// Covers shard-3.
TEST_P(ShardingProcesses, HaveTheBitsOfTheSimulator) {
  const auto& expected = reference({}, corpus_);
  const auto record = run(job(), folder_.path("run"));

  EXPECT_EQ(record.losses, std::vector(expected.losses.begin(), expected.losses.begin() + kSteps));
  EXPECT_EQ(record.state, expected.state);
}

TEST_P(ShardingProcesses, HaveTheSimulatorsBitsWhenGradientsTravelAsBf16) {
  const auto& expected = reference({.wire = core::DType::bf16}, corpus_);
  auto narrow = job();
  narrow.trainer_options.insert(narrow.trainer_options.end(), {"--wire-dtype", "bf16"});

  const auto record = run(narrow, folder_.path("run"));

  EXPECT_EQ(record.losses, std::vector(expected.losses.begin(), expected.losses.begin() + kSteps));
  EXPECT_EQ(record.state, expected.state);
}

TEST_P(ShardingProcesses, HaveTheSimulatorsBitsWhenTargetsAreUneven) {
  const auto& expected = reference({.chats = true}, chats_);

  const auto record = tests::run_gpt(job(), chats_path_, folder_.path("run"));

  EXPECT_EQ(record.losses, std::vector(expected.losses.begin(), expected.losses.begin() + kSteps));
  EXPECT_EQ(record.state, expected.state);
}

TEST_P(ShardingProcesses, HaveTheBitsOfTheSimulatorWithExperts) {
  const auto& expected = reference({.experts = 4}, corpus_);
  auto with_experts = job();
  with_experts.trainer_options.insert(with_experts.trainer_options.end(), {"--experts", "4"});

  const auto record = run(with_experts, folder_.path("run"));

  EXPECT_EQ(record.losses, std::vector(expected.losses.begin(), expected.losses.begin() + kSteps));
  EXPECT_EQ(record.state, expected.state);
}

// Covers beyond-9, ranks-14.
TEST_P(ShardingProcesses, KeepTheirBitsAfterAKillAndResume) {
  if (GetParam().ranks() == 1) GTEST_SKIP() << "nobody is left to tell of it";
  expect_same_bits_after_a_death(job(), {});
}

class RecomputingProcesses : public ShardingProcesses {};

// Covers unit-19.
TEST_P(RecomputingProcesses, HaveTheUsualBitsAlsoWhenKilledAndResumed) {
  auto three_layers = job();
  three_layers.trainer_options.insert(three_layers.trainer_options.end(), {"--layers", "3"});
  expect_same_bits_after_a_death(three_layers, {"--recompute"});
}

std::vector<ShardingMesh> meshes_of_processes() {
  std::vector<ShardingMesh> found;
  for (const auto& mesh : tests::sharding_meshes()) {
    if (mesh.ranks() <= 4) found.push_back(mesh);
  }
  return found;
}

INSTANTIATE_TEST_SUITE_P(Real, ShardingProcesses, testing::ValuesIn(meshes_of_processes()),
                         [](const auto& each) { return each.param.name(); });

class MuonProcesses : public ShardingProcesses {};

// Covers beyond-9, state-16.
TEST_P(MuonProcesses, KeepTheirBitsAfterAKillAndResume) {
  auto with_muon = job();
  with_muon.trainer_options.insert(with_muon.trainer_options.end(), {"--optimizer", "muon"});
  expect_same_bits_after_a_death(with_muon, {});
}

INSTANTIATE_TEST_SUITE_P(Real, RecomputingProcesses,
                         testing::Values(ShardingMesh{core::Strategy::zero3, 1, 2},
                                         ShardingMesh{core::Strategy::hfsdp, 2, 2}),
                         [](const auto& each) { return each.param.name(); });

INSTANTIATE_TEST_SUITE_P(Real, MuonProcesses,
                         testing::Values(ShardingMesh{core::Strategy::zero1, 1, 2},
                                         ShardingMesh{core::Strategy::zero3, 1, 2},
                                         ShardingMesh{core::Strategy::hfsdp, 2, 2}),
                         [](const auto& each) { return each.param.name(); });

}  // namespace
}  // namespace troupe
