#include <gtest/gtest.h>

#include <iostream>

#include "gpu/devices.hpp"

namespace troupe::apps::gpt {
namespace {

/// Skips all tests of the program where there is no GPU, and says why.
class NeedsGpu final : public testing::Environment {
  void SetUp() override {
    const auto devices = gpu::list_cuda_devices();
    if (devices) return;
    // By itself, a program whose tests were all skipped says that all tests passed.
    std::cout << "[  SKIPPED ] all tests, for want of a GPU\n";
    GTEST_SKIP() << devices.error().message;
  }
};

[[maybe_unused]] testing::Environment* const kNeedsGpu = testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace
}  // namespace troupe::apps::gpt
