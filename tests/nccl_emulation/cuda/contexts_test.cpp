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

}  // namespace
}  // namespace troupe::gpu
