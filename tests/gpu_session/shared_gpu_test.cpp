#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "actors/shell/process_rank.hpp"
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

}  // namespace
}  // namespace troupe::actors
