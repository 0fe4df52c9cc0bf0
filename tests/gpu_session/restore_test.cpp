#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/errors.hpp"
#include "tests/cuda_emulation/control.hpp"
#include "tests/gpu_session/company.hpp"
#include "tests/gpu_session/tracked_storage.hpp"
#include "tests/simulation/altered_world.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSaved = 2;  ///< steps before the save
constexpr std::uint64_t kBudget = 1024;

/// What one rank's restore took.
struct Taken {
  TinyTrainerResult training;
  std::uint64_t bytes_read = 0;
  std::size_t landing_bytes = 0;
  std::size_t pinned_bytes = 0;
  int rounds = 0;  ///< of an exchange between memories of hosts
};

std::uint64_t uninterrupted_hash(const TinyTrainerOptions& options) {
  const auto outcome = simulate_tiny(1, 1, options);
  EXPECT_EQ(problems_of(outcome.report), "");
  return outcome.ranks[0].state_hash;
}

/// A device that has no more streams.
class DeviceWithoutStreams final : public gpu::Device {
 public:
  explicit DeviceWithoutStreams(gpu::Device& device) : device_(device) {}

  gpu::DeviceKind kind() const override { return device_.kind(); }
  bool is_host_memory() const override { return device_.is_host_memory(); }
  std::string description() const override { return device_.description(); }
  core::Result<gpu::Buffer> allocate(std::size_t bytes) override { return device_.allocate(bytes); }
  core::Result<gpu::Buffer> allocate_staging(std::size_t bytes) override {
    return device_.allocate_staging(bytes);
  }
  core::Result<gpu::Stream> create_stream(gpu::StreamOptions) override {
    return core::fail(core::Errc::unavailable, "no more streams");
  }
  core::Result<gpu::Event> create_event() override { return device_.create_event(); }
  gpu::DeviceTime now() const override { return device_.now(); }
  void observe(gpu::TaskObserver observer) override { device_.observe(std::move(observer)); }

 private:
  gpu::Device& device_;
};

class RestoreOnGpus : public testing::Test {
 protected:
  RestoreOnGpus() : directory_(own_folder("restore_on_gpus")) { fs::remove_all(directory_); }
  ~RestoreOnGpus() override { fs::remove_all(directory_); }
  void TearDown() override { EXPECT_EQ(company_.violations(), std::vector<std::string>{}); }

  /// 9,600 elements with two moments each: a hundred times the budget, and each tensor alone is more.
  static TinyTrainerOptions job(core::Strategy strategy) {
    TinyTrainerOptions options;
    options.layers = 3;
    options.width = 2400;
    options.steps = kSaved + 1;
    set_strategy(options.session.training, strategy);
    options.session.training.lanes = 4;
    options.session.training.bucket_elements = 1600;
    options.session.checkpoint.load.staging_bytes = kBudget;
    return options;
  }

  core::Result<Taken> tracked(RankWorld& world, const TinyTrainerOptions& options) {
    AlteredWorld altered(world);
    Taken taken;
    std::unique_ptr<TrackedStorage> checkpoints;
    std::unique_ptr<TrackedStorage> copies;
    if (auto* storage = world.storage()) checkpoints = std::make_unique<TrackedStorage>(*storage);
    if (auto* storage = world.local_storage()) copies = std::make_unique<TrackedStorage>(*storage);
    altered.other_storage = checkpoints.get();
    altered.other_local_storage = copies.get();
    const auto rounds = std::make_shared<std::atomic<int>>(0);  // shared with the device's streams
    world.host_device().observe([rounds](const gpu::TaskRecord& task) {
      if (task.stream == "loads" && task.label == "all_to_all") ++*rounds;
    });
    taken.training = TRY(train_tiny(altered, options, [](std::chrono::nanoseconds) {}));
    taken.rounds = *rounds;
    for (const auto* storage : {checkpoints.get(), copies.get()}) {
      if (storage == nullptr) continue;
      taken.bytes_read += storage->bytes_read();
      taken.landing_bytes += storage->landing_bytes();
      taken.pinned_bytes = std::max(taken.pinned_bytes, storage->pinned_bytes());
    }
    return taken;
  }

  std::vector<core::Result<Taken>> run(int ranks, const TinyTrainerOptions& options, bool is_local) {
    const auto directory = directory_.string();
    return company_.run<Taken>(
        ranks, [&](RankWorld& world) { return tracked(world, options); },
        is_local ? std::string() : directory, is_local ? directory : std::string());
  }

  void save(int ranks, TinyTrainerOptions options, bool is_local) {
    options.steps = kSaved;
    (is_local ? options.local_every : options.save_every) = kSaved;
    for (const auto& result : run(ranks, options, is_local)) {
      ASSERT_TRUE(result) << result.error().message;
      for (const auto& save : result->training.saves) EXPECT_TRUE(save.committed);
      for (const auto& save : result->training.local_saves) EXPECT_TRUE(save.committed);
    }
  }

  /// One rank restores: everything that is pinned or copied meanwhile is its own.
  void expect_bounded(core::Strategy strategy, bool is_local) {
    const auto expected = uninterrupted_hash(job(strategy));
    auto options = job(strategy);
    options.restore = true;
    const auto pageable = cuda_emulation::pageable_copies();

    const auto results = run(1, options, is_local);

    ASSERT_TRUE(results[0]) << results[0].error().message;
    const auto& taken = *results[0];
    ASSERT_TRUE(taken.training.restored);
    EXPECT_EQ(taken.training.restored->is_local, is_local);
    EXPECT_EQ(taken.training.state_hash, expected);
    EXPECT_GT(taken.bytes_read, 100 * kBudget);
    EXPECT_GT(taken.landing_bytes, 0u);
    EXPECT_LE(taken.landing_bytes, kBudget);
    EXPECT_GT(taken.pinned_bytes, 0u);
    EXPECT_LE(taken.pinned_bytes, kBudget);
    EXPECT_EQ(cuda_emulation::pageable_copies(), pageable);
  }

  EmulatedCompany company_;
  const fs::path directory_;
};

// Covers save-12.
TEST_F(RestoreOnGpus, CheckpointStaysWithinItsHostMemoryBudget) {
  save(2, job(core::Strategy::zero1), false);

  expect_bounded(core::Strategy::zero1, false);
  expect_bounded(core::Strategy::ddp, false);
}

TEST_F(RestoreOnGpus, LocalCopyStaysWithinItsHostMemoryBudget) {
  save(1, job(core::Strategy::zero1), true);

  expect_bounded(core::Strategy::zero1, true);
}

TEST_F(RestoreOnGpus, RanksWithSmallBudgetsKeepTheSameBits) {
  const auto expected = uninterrupted_hash(job(core::Strategy::ddp));
  save(2, job(core::Strategy::zero1), false);
  for (std::uint64_t turn = 0; turn < 6; ++turn) {
    const int ranks = turn % 2 == 0 ? 2 : 4;
    auto options = job(strategy_in_turn(ranks, turn));
    options.session.checkpoint.load.staging_bytes = core::LoadOptions::kLeastStagingBytes;
    options.restore = true;

    for (const auto& result : run(ranks, options, false)) {
      ASSERT_TRUE(result) << result.error().message;
      ASSERT_TRUE(result->training.restored);
      EXPECT_EQ(result->training.state_hash, expected) << ranks << " ranks";
    }
  }
}

TEST_F(RestoreOnGpus, RanksExchangeWhatEachShardsOnlyReaderRead) {
  const auto expected = uninterrupted_hash(job(core::Strategy::ddp));
  save(2, job(core::Strategy::zero1), false);
  for (int ranks : {2, 4}) {
    std::vector<std::uint64_t> bytes_read;
    for (auto mode : {core::LoadMode::read, core::LoadMode::exchange}) {
      auto options = job(core::Strategy::ddp);
      options.session.checkpoint.load.mode = mode;
      options.session.checkpoint.load.exchange_bytes = 3000;
      options.restore = true;
      auto& bytes = bytes_read.emplace_back();

      for (const auto& result : run(ranks, options, false)) {
        ASSERT_TRUE(result) << result.error().message;
        ASSERT_TRUE(result->training.restored);
        EXPECT_EQ(result->training.state_hash, expected) << ranks << " ranks " << core::name_of(mode);
        EXPECT_EQ(result->rounds > 0, mode == core::LoadMode::exchange);
        bytes += result->bytes_read;
      }
    }
    EXPECT_EQ(bytes_read[1] * static_cast<std::uint64_t>(ranks), bytes_read[0]);
  }
}

TEST_F(RestoreOnGpus, RankThatCannotExchangeEndsTheRestoreOnAll) {
  save(2, job(core::Strategy::zero1), false);
  auto options = job(core::Strategy::ddp);
  options.session.checkpoint.load.mode = core::LoadMode::exchange;
  options.restore = true;
  const auto begin = std::chrono::steady_clock::now();

  const auto results = company_.run<TinyTrainerResult>(
      2,
      [&](RankWorld& world) {
        AlteredWorld altered(world);
        DeviceWithoutStreams device(world.host_device());
        if (world.rank().value == 1) altered.other_host_device = &device;
        return train_tiny(altered, options, [](std::chrono::nanoseconds) {});
      },
      directory_.string());

  for (const auto& result : results) {
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message.find("no more streams"), std::string::npos) << result.error().message;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST_F(RestoreOnGpus, BudgetForNothingIsRefusedAtTheJoin) {
  auto options = job(core::Strategy::ddp);
  options.session.checkpoint.load.staging_bytes = core::LoadOptions::kLeastStagingBytes - 1;

  const auto results = run(1, options, false);

  ASSERT_FALSE(results[0]);
  EXPECT_EQ(results[0].error().code, core::Errc::invalid_argument);
}

}  // namespace
}  // namespace troupe::actors
