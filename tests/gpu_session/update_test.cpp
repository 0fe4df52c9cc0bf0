#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/planes/step/data_plane.hpp"
#include "gpu/cuda/cuda_device.hpp"
#include "gpu/order/checked_device.hpp"
#include "tests/cuda_emulation/control.hpp"
#include "tests/device_bytes/device_bytes.hpp"

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kMatrices = 2;
constexpr std::int64_t kRows = 12;
constexpr std::int64_t kColumns = 8;

/// Each matrix is a bucket of its own.
TrainingPlan plan_of_matrices() {
  core::TrainingOptions options;
  options.strategy = core::Strategy::ddp;
  options.bucket_elements = 1;
  options.groups = {{1, {.kind = core::OptimizerKind::muon}}};
  std::vector<core::ParameterSpec> matrices;
  for (std::uint32_t p = 0; p < kMatrices; ++p)
    matrices.push_back({"w" + std::to_string(p), {kRows, kColumns}});
  return plan_training(matrices, options, {1}).value();
}

/// The data plane of one rank on an emulated GPU, with a gradient of each matrix.
class PlaneOnAGpu {
 public:
  PlaneOnAGpu() {
    DataPlane::Options options;
    options.post = [](const messages::Envelope&) {};
    data_ = DataPlane::create(*device_, plan_, std::move(options)).value();
    EXPECT_TRUE(data_->sums().clear_all(60s));
    for (std::uint32_t p = 0; p < kMatrices; ++p) {
      std::vector<float> values(kRows * kColumns, 0.0F);
      write(values, data_->tensors().parameter({p}));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 7 + p) % 11) - 5.0F;
      write(values, data_->tensors().gradient({p}, {0}));
    }
    data_->updates().adopt_all();
  }

  /// What one ParameterShard asks for.
  void step(core::BucketIndex bucket) { data_->perform(StepShard{{0}, bucket, true, 0.1, 1}); }

  /// The values of all matrices, once every step enqueued so far is done.
  std::vector<float> values() {
    for (std::uint32_t bucket = 0; bucket < kMatrices; ++bucket)
      EXPECT_TRUE(data_->updated({bucket})->wait(60s));
    std::vector<float> found(kMatrices * kRows * kColumns);
    for (std::uint32_t p = 0; p < kMatrices; ++p) {
      const auto matrix = data_->tensors().parameter({p});
      tests::copy_bytes(found.data() + p * kRows * kColumns, matrix.data, matrix.bytes);
    }
    return found;
  }

 private:
  static void write(const std::vector<float>& values, gpu::BufferView memory) {
    tests::copy_bytes(memory.data, values.data(), memory.bytes);
  }

  const TrainingPlan plan_ = plan_of_matrices();
  std::unique_ptr<gpu::Device> device_ = gpu::check_order(
      gpu::open_cuda_device({}).value(), [](const std::string& sentence) { ADD_FAILURE() << sentence; });
  std::unique_ptr<DataPlane> data_;
};

// ParameterShards run on several threads, and a step by Muon is dozens of kernels that share scratch memory.
TEST(UpdateOnGpus, TwoMatrixStepsEnqueuedAtOnceKeepTheirBits) {
  PlaneOnAGpu in_turn;
  PlaneOnAGpu at_once;
  for (std::uint32_t bucket = 0; bucket < kMatrices; ++bucket) in_turn.step({bucket});
  const auto expected = in_turn.values();
  ASSERT_NE(expected, std::vector<float>(expected.size(), 0.0F));
  std::thread other;
  std::atomic<bool> is_enqueued{false};
  cuda_emulation::interrupt_call("cudaLaunchKernel", 8, [&] {
    other = std::thread([&] {
      at_once.step({1});
      is_enqueued = true;
    });
    // The other thread gets ample time to come between; it never does where it has to wait for this one.
    for (int i = 0; i < 100000 && !is_enqueued; ++i) std::this_thread::yield();
  });

  at_once.step({0});
  ASSERT_TRUE(other.joinable()) << "a step by Muon is that many kernels";
  other.join();

  EXPECT_EQ(at_once.values(), expected) << "kernels of two steps shared their scratch memory";
}

}  // namespace
}  // namespace troupe::actors
