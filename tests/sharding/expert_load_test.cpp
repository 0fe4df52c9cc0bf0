#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "actors/simulation/simulation.hpp"
#include "actors/world/simulation/storage.hpp"
#include "apps/gpt/model/expert_state.hpp"
#include "apps/gpt/model/parameters.hpp"
#include "apps/gpt/options/expert_options.hpp"
#include "apps/gpt/rank/rank_model.hpp"
#include "apps/gpt/run/distributed_trainer.hpp"
#include "core/errors.hpp"
#include "tests/processes/gpt_job.hpp"
#include "tests/processes/gpt_options.hpp"

namespace troupe {
namespace {

using apps::gpt::Corpus;
using apps::gpt::DistributedTrainer;
using core::ExpertTally;

constexpr std::size_t kExperts = 4;

/// What rank 0 was told: of the first two steps, then of the next one.
struct Told {
  ExpertTally two, one;
};

class ExpertLoad : public testing::Test {
 protected:
  /// `spread` ranks keep a part of the experts each.
  apps::gpt::TrainerOptions options(core::Strategy strategy, int spread = 1) const {
    auto options = tests::gpt_options("adamw");
    EXPECT_TRUE(
        apps::gpt::apply_expert_options({.count = kExperts, .capacity_factor = 0.75}, false, options.model));
    options.session.training.strategy = strategy;
    options.session.training.expert_parallel = spread;
    options.model.experts.bias_rate = bias_rate_;
    if (bias_rate_ > 0) options.model.experts.balance = 0;
    return options;
  }

  template <class Play>
  void run(int ranks, core::Strategy strategy, actors::Storage* disk, const Play& play,
           int spread = 1) const {
    actors::SimulationOptions simulation;
    simulation.ranks = {ranks};
    simulation.storage = disk;
    const auto report =
        actors::Simulation(simulation).run([&](actors::SimulatedRank& rank) -> core::Result<void> {
          auto trainer = TRY(DistributedTrainer::create(rank, options(strategy, spread), corpus_));
          TRY(play(rank.rank(), *trainer));
          return trainer->session().leave();
        });
    for (const auto& result : report.results) ASSERT_TRUE(result) << result.error().message;
  }

  Told told(int ranks, core::Strategy strategy, actors::Storage* disk, int spread = 1) const {
    Told told;
    const auto play = [&](core::Rank rank, DistributedTrainer& trainer) -> core::Result<void> {
      for (int step = 0; step < 2; ++step) TRY(trainer.step());
      const auto two = TRY(trainer.take_expert_load());
      TRY(trainer.step());
      const auto one = TRY(trainer.take_expert_load());
      TRY(trainer.save());
      TRY(trainer.session().wait_saves());
      if (rank.value == 0) told = {two, one};
      return {};
    };
    run(ranks, strategy, disk, play, spread);
    return told;
  }

  core::Result<ExpertTally> load_of(DistributedTrainer& trainer) const {
    return apps::gpt::expert_load(trainer.session(), options(core::Strategy::ddp).model);
  }

  double bias_rate_ = 0;
  tests::ScratchFolder folder_;
  std::string text_ = tests::write_sample_text(folder_);
  Corpus corpus_ = *Corpus::open(text_, 16);
};

std::int64_t total(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

TEST_F(ExpertLoad, CountsEveryTokensChoicesOnAnyRanks) {
  actors::SimulatedStorage disk({});
  const auto alone = told(1, core::Strategy::ddp, &disk);
  const auto of_trainer = options(core::Strategy::ddp);
  const auto tokens = static_cast<std::int64_t>(of_trainer.microbatch.batch * of_trainer.microbatch.length) *
                      of_trainer.session.training.lanes * of_trainer.session.training.microbatches;

  ASSERT_EQ(alone.two.layers(), of_trainer.model.layers);
  for (std::size_t layer = 0; layer < alone.two.layers(); ++layer) {
    EXPECT_EQ(total(alone.one.chosen(layer)), tokens * 2) << "two experts per token";
    EXPECT_EQ(total(alone.two.chosen(layer)), 2 * tokens * 2) << "of two steps";
    EXPECT_GT(total(alone.one.dropped(layer)), 0) << "there is room for three quarters";
  }
  for (const auto& [ranks, spread] : {std::pair{2, 1}, {4, 1}, {4, 2}, {4, 4}}) {
    actors::SimulatedStorage other({});
    const auto shared = told(ranks, core::Strategy::zero3, &other, spread);
    EXPECT_EQ(shared.two, alone.two) << ranks << " ranks, experts over " << spread;
    EXPECT_EQ(shared.one, alone.one) << ranks << " ranks, experts over " << spread;
  }
}

TEST_F(ExpertLoad, GoesOnWithWhatTheCheckpointHas) {
  actors::SimulatedStorage disk({});
  const auto before = told(2, core::Strategy::zero3, &disk);
  auto expected = before.two;
  expected += before.one;

  run(4, core::Strategy::zero1, &disk, [&](core::Rank, DistributedTrainer& trainer) -> core::Result<void> {
    TRY(trainer.resume({}));
    EXPECT_EQ(TRY(load_of(trainer)), expected);
    // What came before is told already.
    EXPECT_EQ(TRY(trainer.take_expert_load()), expected - expected);
    return {};
  });
}

// Before they were tensors, checkpoints had them among their common values.
core::Value earlier_state(const ExpertTally& load, const std::vector<float>& biases) {
  core::Value::List chosen, dropped, bias;
  for (std::size_t layer = 0; layer < load.layers(); ++layer) {
    for (const auto count : load.chosen(layer)) chosen.emplace_back(count);
    for (const auto count : load.dropped(layer)) dropped.emplace_back(count);
  }
  for (const float value : biases) bias.emplace_back(static_cast<double>(value));
  return core::Value::Map{
      {"expert_load", core::Value::Map{{"experts", static_cast<std::int64_t>(load.experts())},
                                       {"chosen", std::move(chosen)},
                                       {"dropped", std::move(dropped)}}},
      {"router_bias", std::move(bias)}};
}

/// A checkpoint of a session that knows of no layers of experts.
void save_as_before(const apps::gpt::TrainerOptions& options, const core::Value& common,
                    actors::Storage& disk) {
  actors::SimulationOptions simulation;
  simulation.storage = &disk;
  const auto report =
      actors::Simulation(simulation).run([&](actors::SimulatedRank& rank) -> core::Result<void> {
        const auto table = apps::gpt::parameter_table(options.model);
        auto session = TRY(actors::Session::join(
            rank, options.session,
            apps::gpt::session_parameters(table, core::DType::f32, options.session.training)));
        TRY(session->save(common));
        TRY(session->wait_saves());
        return session->leave();
      });
  ASSERT_TRUE(report.results[0]) << report.results[0].error().message;
}

TEST_F(ExpertLoad, IsReadFromACheckpointsCommonValues) {
  bias_rate_ = 0.01;
  const auto of_trainer = options(core::Strategy::zero1);
  ExpertTally load(of_trainer.model.layers, kExperts);
  std::vector<float> biases;
  for (std::size_t layer = 0; layer < of_trainer.model.layers; ++layer) {
    load.add(layer, std::vector<std::int64_t>{5, 6, 7, 8}, std::vector<std::int64_t>{0, 1, 0, 2});
    for (std::size_t e = 0; e < kExperts; ++e) biases.push_back(0.25F * static_cast<float>(biases.size()));
  }
  actors::SimulatedStorage disk({}), of_others({});
  save_as_before(of_trainer, earlier_state(load, biases), disk);
  save_as_before(of_trainer, earlier_state(ExpertTally(3, kExperts), biases), of_others);

  run(2, core::Strategy::zero1, &disk, [&](core::Rank, DistributedTrainer& trainer) -> core::Result<void> {
    TRY(trainer.resume({}));
    EXPECT_EQ(TRY(load_of(trainer)), load);
    EXPECT_EQ(*trainer.router_biases(), biases);
    return {};
  });
  run(2, core::Strategy::zero1, &of_others,
      [&](core::Rank, DistributedTrainer& trainer) -> core::Result<void> {
        const auto refused = trainer.resume({});
        EXPECT_EQ(refused.error().code, core::Errc::mismatch);
        EXPECT_THAT(refused.error().message, testing::HasSubstr("2 layers with 4 experts"));
        return {};
      });
}

}  // namespace
}  // namespace troupe
