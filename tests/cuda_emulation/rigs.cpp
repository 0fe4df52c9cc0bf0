#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "core/errors.hpp"
#include "tests/cuda_emulation/control.hpp"
#include "tests/gpu/cuda/cuda_rig.hpp"
#include "tests/gpu/rig.hpp"

namespace troupe::gpu {
namespace {

/// Expects of every test on a device that it launches no kernel for the first time: a driver may wait for the
/// whole device to load it, so warm_up() has launched them all.
class NoKernelIsNew final : public testing::EmptyTestEventListener {
 public:
  /// What has been launched by now was launched by the device itself, or is a kernel of the rig.
  void begin() {
    kernels_ = cuda_emulation::kernels();
    is_open_ = true;
  }

  void OnTestStart(const testing::TestInfo& /*test*/) override { is_open_ = false; }
  void OnTestEnd(const testing::TestInfo& test) override {
    if (!is_open_) return;
    EXPECT_EQ(cuda_emulation::kernels(), kernels_) << test.name() << ": warm_up() misses some";
  }

 private:
  std::size_t kernels_ = 0;
  bool is_open_ = false;
};

core::Result<std::unique_ptr<Rig>> make_rig(NoKernelIsNew& listener) {
  // Also finds what the test before has leaked.
  cuda_emulation::reset();
  auto rig = TRY(make_cuda_rig());
  const Stream stream = TRY(rig->device().create_stream({.name = "rig"}));
  rig->block(stream)();
  TRY(stream->synchronize(std::chrono::seconds(60)));
  listener.begin();
  return rig;
}

}  // namespace

std::vector<DeviceUnderTest> devices_under_test() {
  // Owned by gtest, which deletes it at the end.
  static auto* const listener = [] {
    auto* made = new NoKernelIsNew;
    testing::UnitTest::GetInstance()->listeners().Append(made);
    return made;
  }();
  return {{"cuda_emulated", [] { return make_rig(*listener); }, false}};
}

}  // namespace troupe::gpu
