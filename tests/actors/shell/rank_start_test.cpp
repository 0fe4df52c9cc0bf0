#include "actors/shell/rank_start.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/scratch_folder.hpp"

namespace troupe::actors {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class DirectoriesOfRanks : public testing::Test {
 protected:
  void make(const std::string& path) { std::filesystem::create_directories(folder_.path(path)); }

  tests::ScratchFolder folder_;
};

TEST_F(DirectoriesOfRanks, AreFoundBesideEachOther) {
  for (const char* name : {"10", "2", "0", "02", "-1", "x", "3x", "99999999999"}) make(name);
  std::ofstream(folder_.path("4")) << "a file";

  EXPECT_THAT(ranks_with_directories(folder_.path()),
              ElementsAre(core::Rank{0}, core::Rank{2}, core::Rank{10}));
}

TEST_F(DirectoriesOfRanks, AreFoundByTheirPattern) {
  for (const char* name : {"run-1-a/of-1", "run-3-a/of-3", "run-4-a/of-5", "run-6-b/of-6", "run-a/of-7"})
    make(name);

  EXPECT_THAT(ranks_with_directories(folder_.path("run-{rank}-a/of-{rank}")),
              ElementsAre(core::Rank{1}, core::Rank{3}));
}

TEST_F(DirectoriesOfRanks, AreNoneWhereNothingIs) {
  EXPECT_THAT(ranks_with_directories(folder_.path("nothing")), IsEmpty());
  EXPECT_THAT(ranks_with_directories(folder_.path("nothing/of-{rank}/x")), IsEmpty());
}

}  // namespace
}  // namespace troupe::actors
