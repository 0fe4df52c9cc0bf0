#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "actors/simulation/simulation.hpp"
#include "apps/gpt/run/distributed_trainer.hpp"
#include "core/errors.hpp"
#include "tests/processes/gpt_job.hpp"
#include "tests/processes/gpt_options.hpp"

namespace troupe {
namespace {

using apps::gpt::Corpus;
using apps::gpt::DistributedTrainer;
using apps::gpt::TrainerOptions;

struct Setting {
  core::Strategy strategy = core::Strategy::zero1;
  bool overlap = true;
  int microbatches = 1;
  const char* optimizer = "adamw";
};

std::vector<Setting> settings(int microbatches) {
  return {{core::Strategy::ddp, true, microbatches},
          {core::Strategy::ddp, false, microbatches},
          {core::Strategy::zero1, true, microbatches},
          {core::Strategy::zero1, false, microbatches}};
}

std::string name_of(const Setting& setting, int ranks) {
  return std::string(core::name_of(setting.strategy)) + (setting.overlap ? ", overlap, " : ", no overlap, ") +
         std::to_string(ranks) + " ranks";
}

TrainerOptions trainer_options(const Setting& setting) {
  auto options = tests::gpt_options(setting.optimizer);
  auto& training = options.session.training;
  training.strategy = setting.strategy;
  training.overlap = setting.overlap;
  training.microbatches = setting.microbatches;
  return options;
}

core::Result<tests::GptRecord> train(actors::RankWorld& world, const TrainerOptions& options,
                                     const Corpus& corpus) {
  auto trainer = TRY(DistributedTrainer::create(world, options, corpus));
  tests::GptRecord record;
  for (int step = 0; step < 20; ++step) record.losses.push_back(TRY(trainer->step()).loss);
  record.state = fmt::format("parameters {:016x}", TRY(trainer->parameter_hash()));
  TRY(trainer->session().leave());
  return record;
}

std::vector<tests::GptRecord> simulate(int ranks, const Setting& setting, const Corpus& corpus) {
  actors::SimulationOptions options;
  options.ranks = {ranks};
  options.seed = static_cast<std::uint64_t>(ranks);
  std::vector<tests::GptRecord> records(static_cast<std::size_t>(ranks));
  actors::Simulation simulation(options);
  auto report = simulation.run([&](actors::SimulatedRank& rank) -> core::Result<void> {
    records[static_cast<std::size_t>(rank.rank().value)] = TRY(train(rank, trainer_options(setting), corpus));
    return {};
  });
  EXPECT_TRUE(report.violations.empty()) << report.violations[0];
  return records;
}

/// What one rank computes in the simulator: what all others are compared with.
tests::GptRecord reference(int microbatches, const Corpus& corpus) {
  return simulate(1, {core::Strategy::ddp, false, microbatches}, corpus)[0];
}

class TrainerBits : public testing::TestWithParam<int> {
 protected:
  TrainerBits() : text_(tests::write_sample_text(folder_)), corpus_(*Corpus::open(text_, 16)) {}

  tests::ScratchFolder folder_;
  std::string text_;
  Corpus corpus_;
};

// Covers unit-18.
TEST_P(TrainerBits, AreOneRanksOnSimulatedDdpAndZero1Ranks) {
  auto expected = reference(GetParam(), corpus_);
  ASSERT_EQ(expected.losses.size(), 20u);
  ASSERT_LT(expected.losses.back(), expected.losses.front());

  for (int ranks : {1, 2, 3, 4, 8}) {
    for (const auto& setting : settings(GetParam())) {
      for (const auto& record : simulate(ranks, setting, corpus_)) {
        ASSERT_EQ(record.losses, expected.losses) << name_of(setting, ranks);
        ASSERT_EQ(record.state, expected.state) << name_of(setting, ranks);
      }
    }
  }
}

TEST_P(TrainerBits, OfRealProcessesAreThoseOfTheSimulator) {
  auto expected = reference(GetParam(), corpus_);

  for (int ranks : {1, 2, 4}) {
    for (const auto& setting : settings(GetParam())) {
      tests::GptJob job{ranks, 20, {}, {"--microbatches", std::to_string(GetParam())}};
      job.trainer_options.insert(job.trainer_options.end(),
                                 {"--strategy", std::string(core::name_of(setting.strategy))});
      if (!setting.overlap) job.trainer_options.push_back("--no-overlap");
      const auto record = tests::run_gpt(job, text_, folder_.path("run"));
      ASSERT_EQ(record.losses, expected.losses) << name_of(setting, ranks);
      ASSERT_EQ(record.state, expected.state) << name_of(setting, ranks);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Accumulation, TrainerBits, testing::Values(1, 4),
                         [](const auto& each) { return std::to_string(each.param) + "Microbatches"; });

/// Muon steps the matrices of the blocks, whole, and AdamW the rest.
TEST(TrainerBits, OfLionAndMuonAreOneRanks) {
  tests::ScratchFolder folder;
  const auto text = tests::write_sample_text(folder);
  const auto corpus = *Corpus::open(text, 16);
  for (const char* optimizer : {"lion", "muon"}) {
    const auto expected = simulate(1, {core::Strategy::ddp, false, 1, optimizer}, corpus)[0];
    ASSERT_EQ(expected.losses.size(), 20u);
    ASSERT_LT(expected.losses.back(), expected.losses.front());
    for (const int ranks : {1, 2, 4}) {
      for (const auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
        const Setting setting{strategy, true, 1, optimizer};
        for (const auto& record : simulate(ranks, setting, corpus)) {
          ASSERT_EQ(record.losses, expected.losses) << optimizer << ", " << name_of(setting, ranks);
          ASSERT_EQ(record.state, expected.state) << optimizer << ", " << name_of(setting, ranks);
        }
      }
      const tests::GptJob job{ranks, 20, {}, {"--optimizer", optimizer}};
      const auto output = folder.path(std::string(optimizer) + std::to_string(ranks));
      const auto result =
          tests::run_command(tests::gpt_command(job, text, output), std::chrono::seconds(120));
      ASSERT_EQ(result.exit_code, 0) << result.output;
      const auto record = tests::read_record(output);
      ASSERT_EQ(record.losses, expected.losses) << optimizer << ", " << ranks << " ranks";
      ASSERT_EQ(record.state, expected.state) << optimizer << ", " << ranks << " ranks";
    }
  }
}

TEST(TrainerBits, OverTcpAndWithOptimizerInstancesAreTheSame) {
  tests::ScratchFolder folder;
  auto text = tests::write_sample_text(folder);
  auto corpus = *Corpus::open(text, 16);
  auto expected = reference(1, corpus);

  for (auto options : {std::vector<std::string>{"--collectives", "tcp"}, {"--optimizer-instances", "2"}}) {
    tests::GptJob job{4, 20, {}, options};
    auto output = folder.path(options[1]);
    auto result = tests::run_command(tests::gpt_command(job, text, output), std::chrono::seconds(120));
    ASSERT_EQ(result.exit_code, 0) << result.output;
    auto record = tests::read_record(output);
    EXPECT_EQ(record.losses, expected.losses) << options[1];
    EXPECT_EQ(record.state, expected.state) << options[1];
  }
}

}  // namespace
}  // namespace troupe
