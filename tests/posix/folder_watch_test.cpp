#include "posix/folder_watch.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "tests/support/scratch_folder.hpp"

namespace troupe::posix {
namespace {

TEST(FolderWatch, EndsAWaitWhenAFileIsReplaced) {
  const tests::ScratchFolder folder;
  const auto watch = FolderWatch::open(folder.path(""));
  ASSERT_TRUE(watch.has_value()) << watch.error().message;
  watch->wait(std::chrono::milliseconds(0));
  std::ofstream(folder.path("draft")) << "text";
  std::filesystem::rename(folder.path("draft"), folder.path("file"));

  watch->wait(std::chrono::hours(1));

  const auto before = std::chrono::steady_clock::now();
  watch->wait(std::chrono::milliseconds(20));
  EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(19)) << "once";
}

TEST(FolderWatch, SaysThatThereIsNoSuchFolder) {
  const auto watch = FolderWatch::open("/no/such/folder");

  ASSERT_FALSE(watch.has_value());
  EXPECT_EQ(watch.error().message, "cannot watch /no/such/folder: No such file or directory");
}

}  // namespace
}  // namespace troupe::posix
