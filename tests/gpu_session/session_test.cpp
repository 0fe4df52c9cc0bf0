#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "actors/session/process_world.hpp"
#include "tests/cuda_emulation/control.hpp"
#include "tests/nccl_emulation/emulated_member.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

std::uint16_t free_port() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(listener);
  return ntohs(address.sin_port);
}

/// Parameters for shards of several ranks, in several buckets.
TinyTrainerOptions job(core::Strategy strategy, bool overlap) {
  TinyTrainerOptions options;
  options.layers = 3;
  options.width = 48;
  options.steps = 4;
  options.session.training.strategy = strategy;
  options.session.training.overlap = overlap;
  options.session.training.lanes = 4;
  options.session.training.microbatches = 2;
  options.session.training.bucket_elements = 100;
  options.session.training.clip_norm = 1.0;
  return options;
}

class SessionOnGpus : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(fake_.violations(), std::vector<std::string>{}); }

  std::vector<core::Result<TinyTrainerResult>> train(int ranks, const TinyTrainerOptions& options,
                                                     const std::string& directory = {}) {
    const auto port = free_port();
    std::vector<core::Result<TinyTrainerResult>> results(static_cast<std::size_t>(ranks),
                                                         core::fail(core::Errc::aborted, "did not run"));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        results[static_cast<std::size_t>(rank)] = train_rank(rank, ranks, port, options, directory);
      });
    }
    for (auto& thread : threads) thread.join();
    return results;
  }

 private:
  core::Result<TinyTrainerResult> train_rank(int rank, int ranks, std::uint16_t port,
                                             const TinyTrainerOptions& options,
                                             const std::string& directory) {
    gpu::EmulatedNcclDevice member;
    ProcessWorldOptions world_options;
    world_options.environment = [=] {
      JobEnvironment environment;
      environment.rank = {rank};
      environment.world = {ranks};
      environment.local_rank = rank;
      environment.local_world = ranks;
      environment.job = "gpus";
      environment.control_port = port;
      return core::Result<JobEnvironment>(environment);
    };
    world_options.checkpoint_directory = directory;
    world_options.open_device = [&](gpu::DeviceFailed on_failure) {
      member = gpu::open_emulated_nccl_device(std::move(on_failure));
      return core::Result<std::unique_ptr<gpu::Device>>(std::move(member.device));
    };
    world_options.open_collectives =
        [&](gpu::Device& device,
            gpu::Rendezvous& rendezvous) -> core::Result<std::unique_ptr<gpu::CollectiveBackend>> {
      auto library = TRY(gpu::make_nccl_library(fake_.start_process(member.run_on_stream).api()));
      return std::make_unique<gpu::NcclBackend>(std::move(library), device, std::move(member.port),
                                                rendezvous);
    };
    auto world = TRY(ProcessWorld::create(std::move(world_options)));
    return train_tiny(*world, options, [](std::chrono::nanoseconds) {});
  }

  gpu::FakeNccl fake_;
};

std::uint64_t expected_hash(const TinyTrainerOptions& options) {
  const auto outcome = simulate_tiny(1, 1, options);
  EXPECT_EQ(problems_of(outcome.report), "");
  return outcome.ranks[0].state_hash;
}

TEST_F(SessionOnGpus, EndsWithTheBitsOfOneRankOnTheHost) {
  const auto expected = expected_hash(job(core::Strategy::ddp, true));
  for (int ranks : {1, 2, 4}) {
    for (auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
      for (bool overlap : {true, false}) {
        for (const auto& result : train(ranks, job(strategy, overlap))) {
          ASSERT_TRUE(result) << result.error().message;
          EXPECT_EQ(result->state_hash, expected)
              << ranks << " ranks of " << core::name_of(strategy) << (overlap ? " with overlap" : "");
        }
      }
    }
  }
}

TEST_F(SessionOnGpus, SavesAndGoesOnWithOtherRanks) {
  const auto expected = expected_hash(job(core::Strategy::ddp, true));
  const auto directory = std::filesystem::path(testing::TempDir()) / "session_on_gpus";
  std::filesystem::remove_all(directory);
  auto saving = job(core::Strategy::zero1, true);
  saving.steps = 2;
  saving.save_every = 1;
  for (const auto& result : train(2, saving, directory)) {
    ASSERT_TRUE(result) << result.error().message;
    ASSERT_EQ(result->saves.size(), 2u);
    for (const auto& save : result->saves) EXPECT_TRUE(save.committed) << save.committed.error().message;
  }
  for (int ranks : {1, 4}) {
    auto going_on = job(ranks == 1 ? core::Strategy::ddp : core::Strategy::zero1, true);
    going_on.restore = true;
    for (const auto& result : train(ranks, going_on, directory)) {
      ASSERT_TRUE(result) << result.error().message;
      ASSERT_TRUE(result->restored);
      EXPECT_EQ(result->restored->step, core::Step{2});
      EXPECT_EQ(result->state_hash, expected) << ranks << " ranks";
    }
  }
  std::filesystem::remove_all(directory);
}

TEST_F(SessionOnGpus, ALostDeviceEndsTheJobOnAllRanksWithItsError) {
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
