#include "tests/cuda_emulation/control.hpp"
#include "tests/gpu/cuda/cuda_rig.hpp"
#include "tests/gpu/rig.hpp"

namespace troupe::gpu {

std::vector<DeviceUnderTest> devices_under_test() {
  const auto make = [] {
    // Also finds what the test before has leaked.
    cuda_emulation::reset();
    return make_cuda_rig();
  };
  return {{"cuda_emulated", make, false}};
}

}  // namespace troupe::gpu
