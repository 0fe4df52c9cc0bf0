#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/planes/step/training_plan.hpp"
#include "tests/cuda_emulation/control.hpp"
#include "tests/gpu_session/company.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

/// Parameters for shards of several ranks, in several buckets.
TinyTrainerOptions job(core::Strategy strategy, bool overlap, int microbatches = 2) {
  TinyTrainerOptions options;
  options.layers = 3;
  options.width = 48;
  options.steps = 4;
  set_strategy(options.session.training, strategy);
  options.session.training.overlap = overlap;
  options.session.training.lanes = 4;
  options.session.training.microbatches = microbatches;
  options.session.training.bucket_elements = 100;
  options.session.training.clip_norm = 1.0;
  return options;
}

class SessionOnGpus : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(company_.violations(), std::vector<std::string>{});
    EXPECT_EQ(company_.nccl().live_ranges(), 0u);
    EXPECT_EQ(company_.nccl().live_registrations(), 0u);
  }

  std::vector<core::Result<TinyTrainerResult>> train(int ranks, const TinyTrainerOptions& options,
                                                     const std::string& directory = {}) {
    return company_.run<TinyTrainerResult>(
        ranks, [&](RankWorld& world) { return train_tiny(world, options, [](std::chrono::nanoseconds) {}); },
        directory);
  }

  EmulatedCompany company_;
};

std::uint64_t expected_hash(const TinyTrainerOptions& options) {
  const auto outcome = simulate_tiny(1, 1, options);
  EXPECT_EQ(problems_of(outcome.report), "");
  return outcome.ranks[0].state_hash;
}

TEST_F(SessionOnGpus, EndsWithTheBitsOfOneHostRank) {
  const std::map<int, std::uint64_t> expected_of{{1, expected_hash(job(core::Strategy::ddp, true, 1))},
                                                 {2, expected_hash(job(core::Strategy::ddp, true, 2))}};
  for (int ranks : {1, 2, 4}) {
    for (const auto strategy : strategies_for(ranks)) {
      const int microbatches = has_units(strategy) ? 1 : 2;
      const auto expected = expected_of.at(microbatches);
      // Without overlap on two ranks, and with it on the others.
      for (const auto& result : train(ranks, job(strategy, ranks != 2, microbatches))) {
        ASSERT_TRUE(result) << result.error().message;
        EXPECT_EQ(result->state_hash, expected) << ranks << " ranks of " << core::name_of(strategy);
      }
    }
  }
}

TEST_F(SessionOnGpus, FollowsADeclaredOrderWithTheHostsUsualBits) {
  auto options = job(core::Strategy::ddp, true);
  options.session.training.microbatches = 1;
  const auto expected = expected_hash(options);
  options.session.order = {{{1}, {2}, {0}}, {{2}, {0}, {1}}};
  for (const auto strategy : {core::Strategy::zero2, core::Strategy::zero3}) {
    options.session.training.strategy = strategy;
    for (const int ranks : {2, 4}) {
      for (const auto& result : train(ranks, options)) {
        ASSERT_TRUE(result) << result.error().message;
        EXPECT_EQ(result->state_hash, expected) << ranks << " ranks of " << core::name_of(strategy);
      }
    }
  }
}

TEST_F(SessionOnGpus, LearnsAnOrderWithTheHostsUsualBits) {
  auto options = job(core::Strategy::ddp, true);
  options.session.training.microbatches = 1;
  const auto expected = expected_hash(options);
  options.learned = {{{1}, {2}, {0}}, {{2}, {0}, {1}}};
  for (const auto strategy : {core::Strategy::ddp, core::Strategy::zero2, core::Strategy::zero3}) {
    options.session.training.strategy = strategy;
    for (const auto& result : train(2, options)) {
      ASSERT_TRUE(result) << result.error().message;
      EXPECT_EQ(result->state_hash, expected) << core::name_of(strategy);
    }
  }
}

TEST_F(SessionOnGpus, StepsGroupsByMuonAndLionAsTheHost) {
  const auto grouped = [](core::Strategy strategy) {
    auto options = job(strategy, true);
    options.rows = 6;
    options.bias_group = 1;
    options.session.training.groups = {{1, {.kind = core::OptimizerKind::muon}},
                                       {0.1, {.kind = core::OptimizerKind::lion, .weight_decay = 0.1}}};
    return options;
  };
  const auto expected = expected_hash(grouped(core::Strategy::ddp));
  for (int ranks : {1, 2, 4}) {
    for (auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
      for (const auto& result : train(ranks, grouped(strategy))) {
        ASSERT_TRUE(result) << result.error().message;
        EXPECT_EQ(result->state_hash, expected) << ranks << " ranks of " << core::name_of(strategy);
      }
    }
  }
}

TEST_F(SessionOnGpus, GivesNoSpanThatTheHostDoesNotReach) {
  const auto results = company_.run<std::string>(1, [](RankWorld& world) -> core::Result<std::string> {
    auto session = TRY(Session::join(world, {}, {{"w", {8}}}));
    EXPECT_EQ(TRY(session->parameter_memory({0})).bytes, 32u);
    auto refusal = session->parameter({0}).error().message;
    TRY(session->leave());
    return refusal;
  });

  ASSERT_TRUE(results[0]) << results[0].error().message;
  EXPECT_THAT(*results[0], testing::HasSubstr("w lies in the memory of"));
  EXPECT_THAT(*results[0], testing::HasSubstr("use parameter_memory()"));
}

// Covers adapter-5.
TEST_F(SessionOnGpus, EndsWithTheSameBitsWithRegisteredMemory) {
  for (auto numerics : {core::Numerics::ordered, core::Numerics::fast}) {
    for (const auto strategy : strategies_for(2)) {
      auto options = job(strategy, true, 1);
      options.session.training.numerics = numerics;
      std::optional<std::uint64_t> expected;
      for (bool registered : {false, true}) {
        company_.nccl_options.register_memory = registered;
        const auto before = company_.nccl().registered_operations();
        for (const auto& result : train(2, options)) {
          ASSERT_TRUE(result) << result.error().message;
          if (!expected) expected = result->state_hash;
          EXPECT_EQ(result->state_hash, *expected) << core::name_of(strategy);
        }
        EXPECT_EQ(company_.nccl().registered_operations() > before, registered) << core::name_of(strategy);
      }
    }
  }
}

TEST_F(SessionOnGpus, TrainsWhenOneRankCannotRegisterItsMemory) {
  company_.nccl_options.register_memory = true;
  const auto expected = expected_hash(job(core::Strategy::zero1, true));
  for (bool has_memory : {true, false}) {
    company_.prepare = [&](int rank, gpu::FakeNccl::Process& nccl) {
      if (rank != 1) return;
      nccl.refuse_memory(has_memory ? gpu::NcclStatus::success : gpu::NcclStatus::unhandled_cuda_error);
      nccl.refuse_registrations(gpu::NcclStatus::system_error);
    };
    for (const auto& result : train(2, job(core::Strategy::zero1, true))) {
      ASSERT_TRUE(result) << result.error().message;
      EXPECT_EQ(result->state_hash, expected);
    }
    EXPECT_EQ(company_.nccl().registered_operations(), 0u);
  }
}

TEST_F(SessionOnGpus, SavesAndGoesOnWithOtherRanks) {
  const auto expected = expected_hash(job(core::Strategy::ddp, true, 1));
  const auto directory = own_folder("session_on_gpus");
  std::uint64_t turn = 3;
  for (const auto saved : strategies_for(2)) {
    std::filesystem::remove_all(directory);
    auto saving = job(saved, true, 1);
    saving.steps = 2;
    saving.save_every = 1;
    for (const auto& result : train(2, saving, directory)) {
      ASSERT_TRUE(result) << result.error().message;
      ASSERT_EQ(result->saves.size(), 2u);
      for (const auto& save : result->saves) EXPECT_TRUE(save.committed) << save.committed.error().message;
    }
    const int ranks = turn % 2 == 0 ? 1 : 4;
    auto going_on = job(strategy_in_turn(ranks, turn++), true, 1);
    going_on.restore = true;
    for (const auto& result : train(ranks, going_on, directory)) {
      ASSERT_TRUE(result) << result.error().message;
      ASSERT_TRUE(result->restored);
      EXPECT_EQ(result->restored->step, core::Step{2});
      EXPECT_EQ(result->state_hash, expected) << core::name_of(saved) << " to " << ranks << " ranks";
    }
  }
  std::filesystem::remove_all(directory);
}

TEST_F(SessionOnGpus, TracesEveryCollectiveAsATaskOfTheDevice) {
  auto options = job(core::Strategy::zero1, true);
  options.session.trace = true;
  for (const auto& result : train(2, options)) {
    ASSERT_TRUE(result) << result.error().message;
    std::map<std::string, std::vector<core::TraceEvent>> tracks;
    for (const auto& event : result->trace) tracks[event.track].push_back(event);
    std::map<std::string, int> collectives;
    for (const auto& task : tracks["device communication"]) collectives[task.name] += 1;
    const int buckets = static_cast<int>(
        plan_training(tiny_parameters(options), options.session.training, {2})->buckets.size());
    EXPECT_EQ(collectives["all_to_all"], buckets * options.steps);
    EXPECT_EQ(collectives["all_gather"], buckets * options.steps);
    EXPECT_EQ(collectives["all_reduce"], options.steps);
    EXPECT_FALSE(tracks["device update"].empty());
    EXPECT_FALSE(tracks["device accumulate"].empty());
  }
}

// Covers unit-13.
TEST_F(SessionOnGpus, ShowsAProfilerEverySubsystem) {
  cuda_emulation::attach_profiler();
  (void)cuda_emulation::take_ranges();
  for (const auto& result : train(2, job(core::Strategy::zero1, true))) {
    ASSERT_TRUE(result) << result.error().message;
  }
  const auto ranges = cuda_emulation::take_ranges();
  cuda_emulation::detach_profiler();

  EXPECT_THAT(ranges, testing::Contains("troupe.trainer: step 3").Times(2));
  EXPECT_THAT(ranges, testing::Contains("troupe.communication: all_to_all"));
  EXPECT_THAT(ranges,
              testing::Contains(testing::MatchesRegex("troupe.collectives: all_to_all [0-9]+ of dp_cp-0-0")));
  EXPECT_THAT(ranges, testing::Contains("troupe.gradient_bucket: GradientReady"));
  EXPECT_THAT(ranges, testing::Contains("troupe.update: adam_step"));
}

TEST_F(SessionOnGpus, LostDeviceEndsTheJobEverywhereWithItsError) {
  company_.nccl_options.register_memory = true;
  auto options = job(core::Strategy::zero1, true);
  options.steps = 1000000;
  cuda_emulation::fail_call("cudaLaunchKernel", 1000, cudaErrorLaunchFailure);
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& result : train(2, options)) {
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message.find("cuda"), std::string::npos) << result.error().message;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace troupe::actors
