#include "actors/planes/checkpoint/plane.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <future>
#include <system_error>

#include "actors/world/storage/posix.hpp"
#include "gpu/host/host_device.hpp"
#include "tests/support/fsync_log.hpp"

namespace troupe::actors {
namespace {

namespace fs = std::filesystem;

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using tests::Fsync;
using tests::FsyncLog;

/// One rank's plane over files on the disk, asked for one save by hand.
class CheckpointPlaneOnDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "troupe-plane-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = fs::canonical(name);
    storage_ = PosixStorage::open(root_).value();
    DataPlane::Options options;
    options.post = [](const messages::Envelope&) {};
    data_ = DataPlane::create(*device_, plan_, std::move(options)).value();
    for (const auto& piece : state_.structure.pieces) {
      auto& bytes = values_.emplace_back(state_.structure.bytes_of(piece), std::byte{7});
      memory_.push_back(gpu::view_of(std::span(bytes)));
    }
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }

  /// Writes all pieces into `directory` and returns what came back in the end.
  messages::FilesDurable save(bool sync) {
    const std::string directory = sync ? "synced" : "loose";
    EXPECT_TRUE(storage_->make_directory(directory));
    messages::FilesDurable durable;
    std::promise<void> staged;
    CheckpointPlane::Options options;
    options.chunk_bytes = 1 << 16;
    options.staging = {options.chunk_bytes};
    options.sync = sync;
    options.run_io = [](const std::function<void()>& job) { job(); };
    options.post = [&](const messages::Envelope& envelope) {
      if (std::holds_alternative<messages::ChunkStaged>(envelope.body)) staged.set_value();
      if (const auto* end = std::get_if<messages::FilesDurable>(&envelope.body)) durable = *end;
    };
    const auto plane =
        CheckpointPlane::create(*device_, *data_, state_, memory_, *storage_, std::move(options)).value();
    std::vector<std::uint32_t> pieces;
    for (std::uint32_t i = 0; i < state_.structure.pieces.size(); ++i) pieces.push_back(i);
    plane->perform(OpenSave{1, directory, pieces});
    plane->perform(StageChunk{1, 0, 0});
    staged.get_future().wait();
    plane->perform(WriteChunk{1, 0, 0});
    plane->perform(FinishFiles{1});
    return durable;
  }

  fs::path root_;
  std::unique_ptr<gpu::Device> device_ = gpu::open_host_device().value();
  // One bucket, whose state fits into one chunk.
  TrainingPlan plan_ = plan_training({{"w", {1000}}}, {}, {1}).value();
  RankState state_ = state_of(plan_, core::Rank{0});
  std::unique_ptr<PosixStorage> storage_;
  std::unique_ptr<DataPlane> data_;
  std::vector<std::vector<std::byte>> values_;
  std::vector<gpu::BufferView> memory_;
};

TEST_F(CheckpointPlaneOnDisk, FilesAreDurableOnlyAfterTheirLastSyncedByte) {
  FsyncLog log;

  const auto durable = save(true);

  ASSERT_FALSE(durable.failure.failed) << durable.failure.message;
  EXPECT_EQ(durable.hashes.size(), state_.structure.pieces.size());
  std::vector<Fsync> whole;
  for (const auto& file : fs::directory_iterator(root_ / "synced"))
    whole.push_back({file.path(), file.file_size()});
  std::sort(whole.begin(), whole.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  ASSERT_FALSE(whole.empty());
  EXPECT_THAT(log.take(), ElementsAreArray(whole));
}

TEST_F(CheckpointPlaneOnDisk, FilesThatMayVanishWithPowerAreNotSynced) {
  FsyncLog log;

  const auto durable = save(false);

  EXPECT_FALSE(durable.failure.failed) << durable.failure.message;
  EXPECT_THAT(log.take(), IsEmpty());
}

TEST_F(CheckpointPlaneOnDisk, AFileOfAnEmptyPieceHasItsHeader) {
  state_ = {};
  state_.structure.tensors = {{"rows", core::DType::f32, {4}}};
  state_.structure.pieces = {{0, {{4}, {0}}}};
  state_.pieces = {{StateKind::trainer, {1}, 0, 0}};
  ASSERT_TRUE(storage_->make_directory("save"));
  messages::FilesDurable durable;
  CheckpointPlane::Options options;
  options.chunk_bytes = 1 << 16;
  options.staging = {options.chunk_bytes};
  options.run_io = [](const std::function<void()>& job) { job(); };
  options.post = [&](const messages::Envelope& envelope) {
    if (const auto* end = std::get_if<messages::FilesDurable>(&envelope.body)) durable = *end;
  };
  const auto plane =
      CheckpointPlane::create(*device_, *data_, state_, memory_, *storage_, std::move(options)).value();

  plane->perform(OpenSave{1, "save", {0}});
  plane->perform(FinishFiles{1});

  EXPECT_FALSE(durable.failure.failed) << durable.failure.message;
  const auto planned = core::plan_files(state_.structure, std::vector<std::uint32_t>{0}, core::Rank{0});
  ASSERT_EQ(planned.size(), 1u);
  const auto& header = planned[0].header;
  const auto bytes = storage_->read("save/" + planned[0].name, 0, header.size() + 1);
  ASSERT_TRUE(bytes) << bytes.error().message;
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size()), header);
}

std::uint64_t resident_bytes() {
  std::ifstream statistics("/proc/self/statm");
  std::uint64_t whole = 0, resident = 0;
  statistics >> whole >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

TEST_F(CheckpointPlaneOnDisk, StagingHasItsPagesBeforeTheFirstSave) {
  constexpr std::uint64_t kBytes = std::uint64_t{64} << 20;
  std::deque<std::function<void()>> jobs;
  CheckpointPlane::Options options;
  options.chunk_bytes = kBytes;
  options.staging = {kBytes, kBytes};
  options.run_io = [&](std::function<void()> job) { jobs.push_back(std::move(job)); };
  options.post = [](const messages::Envelope&) {};
  const auto before = resident_bytes();
  const auto plane =
      CheckpointPlane::create(*device_, *data_, state_, memory_, *storage_, std::move(options)).value();
  EXPECT_TRUE(jobs.empty());
  plane->prepare_for_saves();
  plane->prepare_for_saves();
  EXPECT_LT(resident_bytes(), before + kBytes);

  // A save that begins meanwhile waits for one buffer at most.
  EXPECT_EQ(jobs.size(), 1u);
  for (; !jobs.empty(); jobs.pop_front()) jobs.front()();

  EXPECT_GE(resident_bytes(), before + 2 * kBytes - (kBytes >> 4));
}

}  // namespace
}  // namespace troupe::actors
