#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "actors/shell/process_rank.hpp"
#include "core/errors.hpp"
#include "gpu/collective/nccl/environment.hpp"
#include "gpu/devices.hpp"
#include "tests/cuda_emulation/control.hpp"

namespace troupe::actors {
namespace {

TEST(SharedGpu, IsSetUpBeforeCudaReadsTheEnvironment) {
  if (!gpu::is_built_with_cuda()) GTEST_SKIP() << "ranks open no GPU by name";
  const auto variable = process_variables();
  const auto variables = gpu::several_ranks_on_one_gpu(1);
  for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
  cuda_emulation::reset();
  ProcessWorldOptions options;
  options.device = "cuda";
  options.log = [](std::string_view) {};
  options.environment = [] {
    JobEnvironment environment;
    environment.rank = {1};
    environment.local_rank = 1;
    // More than any machine has GPUs.
    environment.world = {1000};
    environment.local_world = 1000;
    environment.job = "shared-gpu-" + std::to_string(::getpid());
    return core::Result<JobEnvironment>(environment);
  };

  const auto rank = ProcessRank::create(std::move(options));

  ASSERT_TRUE(rank) << rank.error().message;
  EXPECT_EQ((*rank)->device_name(), "cuda:0");
  EXPECT_EQ(cuda_emulation::module_loading(), "EAGER");
  EXPECT_EQ(variable("NCCL_HOSTID"), "troupe-host-1");
  for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
}

core::Result<std::string> device_of(ProcessSlot slot) {
  ProcessWorldOptions options;
  options.device = "cuda";
  options.log = [](std::string_view) {};
  options.environment = [slot] {
    JobEnvironment environment;
    environment.slot = slot;
    environment.job = "slots-" + std::to_string(::getpid());
    return core::Result<JobEnvironment>(environment);
  };
  return TRY(ProcessRank::create(std::move(options)))->device_name();
}

TEST(GpuOfAProcess, StaysWhereRanksChange) {
  if (!gpu::is_built_with_cuda()) GTEST_SKIP() << "ranks open no GPU by name";
  cuda_emulation::reset();
  cuda_emulation::set_device_count(3);

  const auto last = device_of({6, 2, 2});
  const auto beyond = device_of({7, 3, 2});

  ASSERT_TRUE(last) << last.error().message;
  EXPECT_EQ(*last, "cuda:2") << "a spare beside two ranks, and of rank 0 now";
  ASSERT_FALSE(beyond);
  EXPECT_THAT(beyond.error().message, testing::HasSubstr("there are 3 and this is process 3"));
  ::unsetenv("CUDA_MODULE_LOADING");
}

class LoadingOfKernels : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu::is_built_with_cuda()) GTEST_SKIP() << "ranks open no GPU by name";
    ::unsetenv(kVariable);
    cuda_emulation::reset();
  }
  void TearDown() override { ::unsetenv(kVariable); }

  /// A rank with a GPU of its own, on a host where there is no other.
  void open_rank_of(int world) {
    ProcessWorldOptions options;
    options.device = "cuda";
    options.log = [this](std::string_view line) { log_ += std::string(line) + "\n"; };
    options.environment = [world] {
      JobEnvironment environment;
      environment.world = {world};
      environment.local_world = 1;
      environment.job = "loading-" + std::to_string(::getpid());
      return core::Result<JobEnvironment>(environment);
    };
    const auto rank = ProcessRank::create(std::move(options));
    ASSERT_TRUE(rank) << rank.error().message;
  }

  static constexpr const char* kVariable = "CUDA_MODULE_LOADING";
  std::string log_;
};

TEST_F(LoadingOfKernels, OfRanksWithPeersIsOverBeforeCollectivesSpin) {
  open_rank_of(2);
  EXPECT_EQ(cuda_emulation::module_loading(), "EAGER");
  EXPECT_EQ(log_, "");
}

TEST_F(LoadingOfKernels, OfARankAloneIsLeftAsItIs) {
  open_rank_of(1);
  EXPECT_EQ(cuda_emulation::module_loading(), "");
  EXPECT_EQ(log_, "");
}

TEST_F(LoadingOfKernels, BySomebodyElsesChoiceIsWarnedOf) {
  ::setenv(kVariable, "LAZY", 1);
  open_rank_of(2);
  EXPECT_EQ(cuda_emulation::module_loading(), "LAZY");
  EXPECT_THAT(log_,
              testing::HasSubstr("set CUDA_MODULE_LOADING=EAGER before anything in this process calls CUDA"));
}

TEST_F(LoadingOfKernels, ThatBeganBeforeTheRankIsWarnedOf) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  open_rank_of(2);
  EXPECT_THAT(log_, testing::HasSubstr("CUDA_MODULE_LOADING=EAGER"));
}

}  // namespace
}  // namespace troupe::actors
