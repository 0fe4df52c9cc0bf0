#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <filesystem>

#include "actors/world/storage/holds.hpp"
#include "actors/world/storage/posix.hpp"
#include "tests/checkpoint/checkpoint_tool.hpp"

namespace troupe::apps {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kOld = "step_00000003.tmp-0123456789abcdef";

class Leftovers : public testing::Test {
 protected:
  void leave(const std::string& name) {
    std::filesystem::create_directories(directory_.path(name));
    write_file(directory_.path(name + "/shard_0.safetensors"), "half");
  }
  std::vector<std::string> names() const { return names_in(directory_.path("")); }

  ScratchFolder directory_;
};

TEST_F(Leftovers, OfKilledImportsAndReshardsGoWithTheNext) {
  for (const std::string tool : {"import", "reshard"}) {
    leave("out/" + std::string(kOld));
    const auto from = tool == "import" ? golden("interop/plain") : golden_checkpoint();
    std::vector<std::string> command{tool, from, directory_.path("out"), "--mesh", "2"};

    const Output run = run_checkpoint(command);

    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.err, HasSubstr("removed " + std::string(kOld) + ", which was never finished"));
    EXPECT_THAT(names_in(directory_.path("out")), Not(Contains(kOld)));
    std::filesystem::remove_all(directory_.path("out"));
  }
}

TEST_F(Leftovers, OfAKilledExportGoWithTheNext) {
  leave("dcp.tmp-0123456789abcdef");
  leave("other.tmp-0123456789abcdef");
  leave("dcp.tmp-mine");

  ASSERT_EQ(run_checkpoint({"export", golden_checkpoint(), directory_.path("dcp"), "--to", "dcp"}).exit_code,
            0);

  EXPECT_THAT(names(), testing::ElementsAre("dcp", "dcp.tmp-mine", "other.tmp-0123456789abcdef"));
}

TEST_F(Leftovers, OfAKilledPruneGoWithTheNext) {
  make_checkpoint(directory_.path("run"), 5, {{"a", core::DType::f32, {1}, floats({1})}});
  leave("run/step_00000004.removed");
  leave("run/" + std::string(kOld));

  const Output dry = run_checkpoint({"prune", directory_.path("run"), "--keep-last", "1", "--dry-run"});
  EXPECT_THAT(names_in(directory_.path("run")), Contains("step_00000004.removed"));
  const Output run = run_checkpoint({"prune", directory_.path("run"), "--keep-last", "1"});

  EXPECT_EQ(dry.exit_code, 0) << dry.err;
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(names_in(directory_.path("run")), testing::ElementsAre("step_00000005"));
}

TEST_F(Leftovers, WhatAProcessIsWritingStays) {
  leave("out/" + std::string(kOld));
  leave("dcp.tmp-0123456789abcdef");
  const auto storage = actors::PosixStorage::open(directory_.path("")).value();
  const auto import = actors::hold_directory(*storage, "out/" + std::string(kOld));
  const auto export_ = actors::hold_directory(*storage, "dcp.tmp-0123456789abcdef");
  ASSERT_FALSE(import.is_empty() || export_.is_empty());

  ASSERT_EQ(run_checkpoint({"import", golden("interop/plain"), directory_.path("out")}).exit_code, 0);
  ASSERT_EQ(run_checkpoint({"prune", directory_.path("out"), "--keep-last", "1"}).exit_code, 0);
  ASSERT_EQ(run_checkpoint({"export", golden_checkpoint(), directory_.path("dcp"), "--to", "dcp"}).exit_code,
            0);

  EXPECT_THAT(names_in(directory_.path("out")), Contains(kOld));
  EXPECT_THAT(names(), Contains("dcp.tmp-0123456789abcdef"));
}

}  // namespace
}  // namespace troupe::apps
