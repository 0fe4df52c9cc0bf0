#include <cuda_runtime_api.h>

#include <future>
#include <set>

#include "tests/cuda_emulation/control.hpp"
#include "tests/gpu/collective/nccl/scene.hpp"

namespace troupe::gpu {
namespace {

class NcclContexts : public NcclScene {};

TEST_F(NcclContexts, AreOnlyOnTheGpuOfTheRank) {
  cuda_emulation::reset();
  cuda_emulation::set_device_count(2);
  gpu_index = 1;
  NcclOptions options;
  options.register_memory = true;
  begin(2, options);

  auto ends_well = create("dp");
  auto fails = create("tp");
  const auto first = post(*ends_well[0], {});
  const auto second = post(*ends_well[1], {});
  settle();
  EXPECT_EQ(outcome_of(*first) + outcome_of(*second), "okok");
  const auto late = post(*fails[0], {.deadline = 10ms});
  await([&] { return late->result().has_value(); });
  ends_well.clear();
  fails.clear();
  expect_nothing_left();
  members.clear();

  EXPECT_EQ(cuda_emulation::contexts(), std::set<int>{1});
}

TEST_F(NcclContexts, LeaveTheCallerItsOwnDevice) {
  cuda_emulation::reset();
  cuda_emulation::set_device_count(2);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  gpu_index = 1;
  NcclOptions options;
  options.register_memory = true;
  begin(1, options);
  add_member(options);
  const auto expect_own = [](const char* after) {
    int device = -1;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(device, 0) << after;
  };

  auto other =
      std::async(std::launch::async, [&] { return members[1].backend->create_group(options_of(1, "dp")); });
  auto own = members[0].backend->create_group(options_of(0, "dp")).value();
  auto others = other.get().value();
  expect_own("create_group");
  const auto first = post(*own, {});
  expect_own("post");
  const auto second = post(*others, {});
  settle();
  EXPECT_EQ(outcome_of(*first) + outcome_of(*second), "okok");
  { const Buffer memory = members[0].backend->allocate(*members[0].emulated.device, 400).value(); }
  expect_own("allocate");
  own.reset();
  others.reset();
  expect_own("the group's end");
  expect_nothing_left();
  members.clear();
}

}  // namespace
}  // namespace troupe::gpu
