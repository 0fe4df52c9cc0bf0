#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "actors/simulation/simulation.hpp"
#include "actors/world/simulation/storage.hpp"
#include "apps/gpt/run/distributed_trainer.hpp"
#include "core/errors.hpp"
#include "tests/processes/gpt_job.hpp"
#include "tests/processes/gpt_options.hpp"

namespace troupe {
namespace {

using apps::gpt::Corpus;
using apps::gpt::DistributedTrainer;
using core::Strategy;
using testing::AllOf;
using testing::HasSubstr;

struct Setting {
  int ranks = 1;
  int ep = 1;
  Strategy strategy = Strategy::zero1;
  std::optional<double> capacity_factor;
  int microbatches = 1;
  core::Numerics numerics = core::Numerics::ordered;

  std::string name() const {
    return fmt::format("{} on {} ranks, ep {}, {}", core::name_of(strategy), ranks, ep,
                       capacity_factor ? "capacity" : "dropless");
  }
};

apps::gpt::TrainerOptions trainer_options(const Setting& setting) {
  auto options = tests::gpt_options();
  options.model.experts = {.count = 4,
                           .choices = 2,
                           .feed_forward = options.model.feed_forward,
                           .names = apps::gpt::ExpertConfig::Names::mixtral};
  options.model.experts.balance = 0.01;
  options.model.experts.capacity_factor = setting.capacity_factor;
  options.session.training.strategy = setting.strategy;
  options.session.training.expert_parallel = setting.ep;
  options.session.training.microbatches = setting.microbatches;
  options.session.training.numerics = setting.numerics;
  return options;
}

core::Result<tests::GptRecord> train(actors::RankWorld& world, const Setting& setting, const Corpus& corpus,
                                     int until) {
  auto trainer = TRY(DistributedTrainer::create(world, trainer_options(setting), corpus));
  if (world.storage() != nullptr) TRY(trainer->resume({}));
  tests::GptRecord record;
  while (trainer->session().next_step().value < until) record.losses.push_back(TRY(trainer->step()).loss);
  record.state = fmt::format("parameters {:016x} evaluation {}", TRY(trainer->parameter_hash()),
                             TRY(trainer->evaluate(2)).value());
  if (world.storage() != nullptr) TRY(trainer->save());
  TRY(trainer->session().leave());
  return record;
}

std::vector<tests::GptRecord> simulate(const Setting& setting, const Corpus& corpus, int until,
                                       actors::Storage* storage = nullptr) {
  actors::SimulationOptions options;
  options.ranks = {setting.ranks};
  options.seed = static_cast<std::uint64_t>(setting.ranks);
  options.storage = storage;
  std::vector<tests::GptRecord> records(static_cast<std::size_t>(setting.ranks));
  actors::Simulation simulation(options);
  const auto report = simulation.run([&](actors::SimulatedRank& rank) -> core::Result<void> {
    records[static_cast<std::size_t>(rank.rank().value)] = TRY(train(rank, setting, corpus, until));
    return {};
  });
  EXPECT_TRUE(report.violations.empty()) << report.violations[0];
  for (const auto& result : report.results) {
    if (!result) ADD_FAILURE() << setting.name() << ": " << result.error().message;
  }
  return records;
}

class ExpertBits : public testing::Test {
 protected:
  void expect_alike(const Setting& setting, const tests::GptRecord& expected) {
    for (const auto& record : simulate(setting, corpus_, 20)) {
      ASSERT_EQ(record.losses, expected.losses) << setting.name();
      ASSERT_EQ(record.state, expected.state) << setting.name();
    }
  }

  tests::ScratchFolder folder_;
  std::string text_ = tests::write_sample_text(folder_);
  Corpus corpus_ = *Corpus::open(text_, 16);
};

// Covers adapter-7, unit-17.
TEST_F(ExpertBits, AreOneRanksForAnyRanksSharingExperts) {
  EXPECT_NE(simulate({}, corpus_, 1)[0].losses, simulate({.capacity_factor = 0.9}, corpus_, 1)[0].losses)
      << "the capacity drops something";
  for (const auto capacity : {std::optional<double>{}, std::optional<double>{0.9}}) {
    const auto expected = simulate({.capacity_factor = capacity}, corpus_, 20)[0];
    ASSERT_EQ(expected.losses.size(), 20U);
    ASSERT_LT(expected.losses.back(), expected.losses.front());
    for (const auto strategy : {Strategy::zero1, Strategy::zero3}) {
      for (const auto& [ranks, ep] : {std::pair{2, 2}, {4, 1}, {4, 2}, {4, 4}, {8, 4}})
        expect_alike({ranks, ep, strategy, capacity}, expected);
    }
  }
}

// Covers unit-37.
TEST_F(ExpertBits, AreOneRanksForOtherStrategiesAndMicrobatches) {
  const auto expected = simulate({.microbatches = 2}, corpus_, 20)[0];
  expect_alike({4, 2, Strategy::ddp, {}, 2}, expected);
  expect_alike({8, 2, Strategy::zero1, {}, 2}, expected);
  expect_alike({4, 2, Strategy::zero2}, simulate({}, corpus_, 20)[0]);
}

/// Joins a simulated job of two ranks that declares `more` besides what it posts, and plays a step. Why it
/// ends.
std::string end_of_a_step(const Setting& setting, const Corpus& corpus,
                          const std::vector<core::DeclaredOperation>& more, std::size_t& declared) {
  actors::SimulationOptions options;
  options.ranks = {setting.ranks};
  actors::Simulation simulation(options);
  const auto report = simulation.run([&](actors::SimulatedRank& rank) -> core::Result<void> {
    auto of_job = trainer_options(setting);
    of_job.session.operations = more;
    auto trainer = TRY(DistributedTrainer::create(rank, of_job, corpus));
    declared = trainer->session().plan().inputs.operations.size();
    TRY(trainer->step());
    return trainer->session().leave();
  });
  return report.results[0] ? "" : report.results[0].error().message;
}

TEST_F(ExpertBits, AreThoseOfJobsHeldToTheirDeclaredExchanges) {
  using Operation = core::DeclaredOperation;
  const Operation surplus{
      "ep", core::CollectiveKind::all_gather, core::DType::i64, {4, 4}, false, core::Pass::forward, {{1}}};
  const std::size_t layers = trainer_options({}).model.layers;
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
    std::size_t declared = 0;

    EXPECT_EQ(end_of_a_step({2, 2, strategy}, corpus_, {}, declared), "");
    EXPECT_EQ(declared, 5 * layers) << "counts, there and back, and both again for gradients";
    EXPECT_THAT(end_of_a_step({2, 2, strategy}, corpus_, {surplus}, declared),
                AllOf(HasSubstr("all_to_all of u8, "), HasSubstr("declares operation")))
        << "counts are not gathered twice";
    EXPECT_EQ(end_of_a_step({2, 1, strategy}, corpus_, {}, declared), "");
    EXPECT_EQ(declared, 0U) << "nothing is exchanged";
  }
}

// Covers state-14, model-12.
TEST_F(ExpertBits, GoOnFromACheckpointWithExpertsElsewhere) {
  const auto expected = simulate({}, corpus_, 12)[0];
  const std::vector<Setting> settings{
      {1, 1, Strategy::zero1}, {4, 4, Strategy::zero1}, {4, 2, Strategy::zero3}};
  for (const auto& from : settings) {
    for (const auto& to : settings) {
      actors::SimulatedStorage disk({});
      simulate(from, corpus_, 5, &disk);
      const auto found = simulate(to, corpus_, 12, &disk);
      ASSERT_EQ(found[0].losses, std::vector(expected.losses.begin() + 5, expected.losses.end()))
          << from.name() << " to " << to.name();
      ASSERT_EQ(found[0].state, expected.state) << from.name() << " to " << to.name();
    }
  }
}

/// One product over the rows of all ranks, and sums in the order of the back-end.
TEST_F(ExpertBits, ComeCloseInFastNumerics) {
  const auto expected = simulate({}, corpus_, 20)[0];
  for (const auto strategy : {Strategy::zero1, Strategy::zero3}) {
    const Setting setting{4, 2, strategy, {}, 1, core::Numerics::fast};
    for (const auto& record : simulate(setting, corpus_, 20)) {
      ASSERT_EQ(record.losses.size(), expected.losses.size());
      for (std::size_t step = 0; step < 20; ++step)
        ASSERT_NEAR(record.losses[step], expected.losses[step], 1e-6 * expected.losses[step]) << step;
    }
  }
}

TEST_F(ExpertBits, OfRealProcessesAreThoseOfOneRank) {
  const auto run = [&](int ranks, const std::vector<std::string>& more) {
    tests::GptJob job{ranks, 20, {}, {"--experts", "4"}};
    job.trainer_options.insert(job.trainer_options.end(), more.begin(), more.end());
    return tests::run_gpt(job, text_, folder_.path("run"));
  };
  const auto expected = run(1, {});
  ASSERT_EQ(expected.losses.size(), 20U);
  ASSERT_NE(expected.state, "");
  for (const auto& [ranks, ep, strategy] :
       {std::tuple{2, "2", "zero1"}, {4, "2", "zero3"}, {4, "4", "zero1"}}) {
    const auto record = run(ranks, {"--expert-parallel", ep, "--strategy", strategy});
    EXPECT_EQ(record.losses, expected.losses) << ranks << " ranks, ep " << ep << ", " << strategy;
    EXPECT_EQ(record.state, expected.state) << ranks << " ranks, ep " << ep << ", " << strategy;
  }
}

}  // namespace
}  // namespace troupe
