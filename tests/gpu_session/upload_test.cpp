#include "actors/planes/checkpoint/upload.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/planes/checkpoint/reader.hpp"
#include "actors/world/storage/posix.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"
#include "tests/actors/planes/checkpoint/stored_checkpoint.hpp"
#include "tests/nccl_emulation/emulated_member.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::actors {
namespace {

using core::Box;
using core::DType;

constexpr std::chrono::seconds kDeadline{60};
const std::string kName = "step_00000007";

/// A matrix of which each of two ranks has half of the columns, and a vector.
core::SavedJob saved_by_columns() {
  std::vector<core::SaveStructure> structures(2);
  for (int rank = 0; rank < 2; ++rank) {
    auto& structure = structures[static_cast<std::size_t>(rank)];
    structure.tensors = {{"matrix", DType::f32, {37, 30}}, {"vector", DType::bf16, {501}}};
    structure.pieces = {{0, {{0, 15 * rank}, {37, 15}}}, {1, Box::whole({501})}};
  }
  const auto plan = core::plan_save(core::views_of(structures));
  return core::save(structures, *plan);
}

/// A disk with a checkpoint, which several threads may read, and a GPU to read it to.
class Uploads : public testing::Test {
 protected:
  void SetUp() override {
    auto disk = PosixStorage::open(folder_.path());
    ASSERT_TRUE(disk) << disk.error().message;
    disk_ = std::move(*disk);
    ASSERT_TRUE(store(*disk_, saved_));
  }

  static std::size_t bytes_of(const core::LoadTarget& target) {
    return static_cast<std::size_t>(target.box.elements()) * core::size_of(target.dtype);
  }

  core::Result<std::vector<core::Bytes>> read_on_host() {
    std::vector<core::Bytes> values;
    for (const auto& target : targets_) values.emplace_back(bytes_of(target), std::byte{0xee});
    std::vector<std::span<std::byte>> memory(values.begin(), values.end());
    TRY(read_tensors(*disk_, kName, saved_.manifest, targets_, memory));
    return values;
  }

  /// What lies on the GPU after a read into memory that held something else.
  core::Result<std::vector<core::Bytes>> read_to_gpu(std::uint64_t budget_bytes, std::size_t threads) {
    const auto uploads = TRY(UploadPool::create(*gpu_.device, budget_bytes, threads, kDeadline));
    const auto stream = TRY(gpu_.device->create_stream({"test", 0}));
    std::vector<gpu::Buffer> buffers;
    std::vector<std::span<std::byte>> memory;
    for (const auto& target : targets_) {
      const auto other = TRY(gpu_.device->allocate_staging(bytes_of(target)));
      std::fill_n(other.view().data, other.bytes(), std::byte{0xee});
      const auto view = buffers.emplace_back(TRY(gpu_.device->allocate(bytes_of(target)))).view();
      gpu::copy(other.view(), view, stream.get());
      TRY(stream->synchronize(kDeadline));
      memory.emplace_back(view.data, view.bytes);
    }
    ReadOptions options;
    options.uploads = uploads.get();
    options.threads = threads;
    TRY(read_tensors(*disk_, kName, saved_.manifest, targets_, memory, options));
    std::vector<core::Bytes> values;
    for (const auto& buffer : buffers) {
      const auto back = TRY(gpu_.device->allocate_staging(buffer.bytes()));
      gpu::copy(buffer.view(), back.view(), stream.get());
      TRY(stream->synchronize(kDeadline));
      values.emplace_back(back.view().data, back.view().data + back.bytes());
    }
    return values;
  }

  core::SavedJob saved_ = saved_by_columns();
  const tests::ScratchFolder folder_;
  std::unique_ptr<PosixStorage> disk_;
  gpu::EmulatedNcclDevice gpu_ = gpu::open_emulated_nccl_device();
  /// Whole and in part, converted to narrower and to wider elements, and of a shape that is zero in part.
  const std::vector<core::LoadTarget> targets_{
      {"matrix", DType::f32, {37, 30}, Box::whole({37, 30})},
      {"matrix", DType::f32, {37, 30}, {{5, 7}, {20, 16}}},
      {"matrix", DType::bf16, {37, 30}, Box::whole({37, 30})},
      {"vector", DType::bf16, {501}, Box::whole({501})},
      {"vector", DType::f64, {501}, Box::whole({501})},
      {"vector", DType::f32, {600}, Box::whole({600}), true},
  };
};

TEST_F(Uploads, BringToAGpuWhatTheHostReads) {
  const auto expected = read_on_host();
  ASSERT_TRUE(expected) << expected.error().message;
  for (std::uint64_t budget : {512U, 1000U, 4096U, 32U << 20}) {
    for (std::size_t threads : {1U, 3U}) {
      const auto values = read_to_gpu(budget, threads);

      ASSERT_TRUE(values) << values.error().message;
      for (std::size_t i = 0; i < targets_.size(); ++i)
        EXPECT_EQ((*values)[i], (*expected)[i]) << "target " << i << ", " << budget << " bytes";
    }
  }
}

TEST_F(Uploads, FindWhatTheHostFindsDamaged) {
  auto [file, bytes] = *saved_.files.begin();
  bytes.back() ^= std::byte{1};
  ASSERT_TRUE(write_whole(*disk_, path_in(kName, file), bytes));

  const auto values = read_to_gpu(UploadPool::kLeastBytes, 2);

  ASSERT_FALSE(values);
  EXPECT_EQ(values.error().code, core::Errc::corrupt);
}

}  // namespace
}  // namespace troupe::actors
