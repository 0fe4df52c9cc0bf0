#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/errors.hpp"
#include "tests/gpu_session/company.hpp"
#include "tests/simulation/simulated_job.hpp"
#include "tests/support/rendezvous_memory.hpp"

namespace troupe::actors {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSaved = 2;  ///< steps before the local save
constexpr std::int64_t kSteps = 4;

class LocalTierOnGpus : public testing::Test {
 protected:
  LocalTierOnGpus() : directory_(own_folder("local_tier_on_gpus")) { fs::remove_all(directory_); }
  ~LocalTierOnGpus() override { fs::remove_all(directory_); }
  void TearDown() override { EXPECT_EQ(company_.violations(), std::vector<std::string>{}); }

  /// Parameters in several buckets, cliques of two, and chunks so small that an exchange has many rounds.
  static TinyTrainerOptions job(core::Strategy strategy, int jump) {
    TinyTrainerOptions options;
    options.layers = 3;
    options.width = 48;
    options.steps = kSteps;
    set_strategy(options.session.training, strategy);
    options.session.training.lanes = 4;
    options.session.training.bucket_elements = 100;
    options.session.training.clip_norm = 1.0;
    options.session.local.jump = jump;
    options.session.local.factor = 2;
    options.session.local.staging_bytes = 512;
    options.session.local.chunk_bytes = 256;
    options.session.local.deadline = std::chrono::seconds(30);
    return options;
  }

  std::vector<core::Result<TinyTrainerResult>> train(int ranks, const TinyTrainerOptions& options) {
    return company_.run<TinyTrainerResult>(
        ranks, [&](RankWorld& world) { return train_tiny(world, options, [](std::chrono::nanoseconds) {}); },
        {}, directory_.string());
  }

  void save(int ranks, TinyTrainerOptions options) {
    options.steps = kSaved;
    options.local_every = 1;
    for (const auto& result : train(ranks, options)) {
      ASSERT_TRUE(result) << result.error().message;
      ASSERT_EQ(result->local_saves.size(), static_cast<std::size_t>(kSaved));
      for (const auto& save : result->local_saves)
        EXPECT_TRUE(save.committed) << save.committed.error().message;
    }
  }

  std::vector<core::Result<TinyTrainerResult>> go_on(int ranks, TinyTrainerOptions options) {
    options.restore = true;
    return train(ranks, options);
  }

  EmulatedCompany company_;
  const fs::path directory_;
};

std::uint64_t uninterrupted_hash(const TinyTrainerOptions& options) {
  const auto outcome = simulate_tiny(1, 1, options);
  EXPECT_EQ(problems_of(outcome.report), "");
  return outcome.ranks[0].state_hash;
}

TEST_F(LocalTierOnGpus, RankWithoutCopiesGetsThemFromItsCliqueBitwise) {
  const auto expected = uninterrupted_hash(job(core::Strategy::ddp, 1));
  int ranks = 2;
  for (const auto strategy : strategies_for(2)) {
    const auto options = job(strategy, ranks / 2);
    save(ranks, options);
    ASSERT_GT(fs::remove_all(directory_ / "1"), 0u);

    for (const auto& result : go_on(ranks, options)) {
      ASSERT_TRUE(result) << result.error().message;
      ASSERT_TRUE(result->restored);
      EXPECT_TRUE(result->restored->is_local);
      EXPECT_EQ(result->restored->step, core::Step{kSaved});
      EXPECT_EQ(result->state_hash, expected) << ranks << " ranks of " << core::name_of(strategy);
    }
    fs::remove_all(directory_);
    ranks = 6 - ranks;
  }
}

TEST_F(LocalTierOnGpus, WhenAWholeCliqueIsLostNothingIsRestored) {
  const auto options = job(core::Strategy::zero1, 1);
  save(4, options);
  ASSERT_GT(fs::remove_all(directory_ / "2"), 0u);
  ASSERT_GT(fs::remove_all(directory_ / "3"), 0u);

  for (const auto& result : go_on(4, options)) {
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_FALSE(result->restored);
  }
}

TEST_F(LocalTierOnGpus, HostsExchangeCopiesOverTheirNetwork) {
  company_.is_on_several_hosts = true;
  company_.alter = [](ProcessWorldOptions& options) { options.tcp_host = "127.0.0.1"; };
  const auto options = job(core::Strategy::zero1, 1);
  const auto expected = uninterrupted_hash(options);
  save(2, options);
  ASSERT_GT(fs::remove_all(directory_ / "0"), 0u);

  for (const auto& result : go_on(2, options)) {
    ASSERT_TRUE(result) << result.error().message;
    ASSERT_TRUE(result->restored);
    EXPECT_EQ(result->state_hash, expected);
  }
}

TEST_F(LocalTierOnGpus, CopiesTakeNothingFromTheGpu) {
  const std::function name = [](RankWorld& world) -> core::Result<std::string> {
    EXPECT_FALSE(world.device().is_host_memory());
    EXPECT_EQ(world.host_device().kind(), gpu::DeviceKind::host);
    gpu::MemoryRendezvous rendezvous;
    return std::string(TRY(world.host_collectives(rendezvous))->name());
  };

  for (const auto& result : company_.run<std::string>(2, name)) {
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ(*result, "automatic") << "shared memory, or TCP between hosts";
  }
}

}  // namespace
}  // namespace troupe::actors
