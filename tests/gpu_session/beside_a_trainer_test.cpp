// What a trainer that calls CUDA itself must not notice of a session.
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "actors/simulation/tiny_trainer.hpp"
#include "tests/gpu_session/company.hpp"

namespace troupe::actors {
namespace {

TinyTrainerOptions job(core::Strategy strategy) {
  TinyTrainerOptions options;
  options.layers = 3;
  options.width = 48;
  options.steps = 3;
  options.session.training.strategy = strategy;
  options.session.training.lanes = 4;
  options.session.training.bucket_elements = 100;
  options.session.training.clip_norm = 1.0;
  return options;
}

constexpr core::Strategy kStrategies[] = {core::Strategy::ddp, core::Strategy::zero1, core::Strategy::zero3};

class SessionBesideATrainer : public testing::Test {
 protected:
  /// Calls `look` in the trainer's thread, in every pass.
  void train(core::Strategy strategy, const std::function<void()>& look) {
    const auto results = company_.run<TinyTrainerResult>(2, [&](RankWorld& world) {
      auto result = train_tiny(world, job(strategy), [&](std::chrono::nanoseconds) { look(); });
      look();
      return result;
    });
    for (const auto& result : results) EXPECT_TRUE(result) << result.error().message;
  }

  EmulatedCompany company_;
};

TEST_F(SessionBesideATrainer, LeavesNoErrorForTheTrainerToMistake) {
  for (const auto strategy : kStrategies)
    train(strategy, [&] { EXPECT_EQ(cudaGetLastError(), cudaSuccess) << core::name_of(strategy); });
}

/// Before a step, NCCL has connected all that the step needs, and nothing else.
TEST(SessionOverNccl, ConnectsWhileItIsJoined) {
  for (const auto numerics : {core::Numerics::ordered, core::Numerics::fast}) {
    for (const auto strategy :
         {core::Strategy::ddp, core::Strategy::zero1, core::Strategy::zero2, core::Strategy::zero3}) {
      EmulatedCompany company;
      std::mutex mutex;
      std::map<int, gpu::FakeNccl::Process> processes;
      std::set<std::string> joined;
      company.prepare = [&](int rank, gpu::FakeNccl::Process& process) {
        std::lock_guard lock(mutex);
        processes.emplace(rank, process);
      };
      auto options = job(strategy);
      options.session.training.numerics = numerics;
      const auto results = company.run<TinyTrainerResult>(4, [&](RankWorld& world) {
        bool is_first = true;
        return train_tiny(world, options, [&](std::chrono::nanoseconds) {
          if (!std::exchange(is_first, false)) return;
          std::lock_guard lock(mutex);
          for (auto& connection : processes.at(world.rank().value).connections())
            joined.insert(std::move(connection));
        });
      });
      for (const auto& result : results) ASSERT_TRUE(result) << result.error().message;

      std::set<std::string> all;
      for (const auto& [rank, process] : processes) {
        for (auto& connection : process.connections()) all.insert(std::move(connection));
      }
      EXPECT_EQ(all, joined) << core::name_of(strategy);
      if (numerics == core::Numerics::ordered) continue;
      for (const auto& connection : all)
        EXPECT_THAT(connection, testing::Not(testing::HasSubstr("ncclSend")));
    }
  }
}

TEST_F(SessionBesideATrainer, LetsAGraphBeCapturedMeanwhile) {
  for (const auto strategy : kStrategies) {
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);

    train(strategy, [] {});

    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess) << core::name_of(strategy);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
}

}  // namespace
}  // namespace troupe::actors
