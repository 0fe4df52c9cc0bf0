#include "actors/world/storage/holds.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "actors/world/storage/posix.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::actors {
namespace {

using core::Errc;
using testing::HasSubstr;
using testing::StartsWith;

class OwnerOfADirectory : public testing::Test {
 protected:
  core::Result<OwnerClaim> take(const std::string& job) {
    said_.clear();
    return OwnerClaim::take(directory_.path(""), job, said_);
  }
  std::string text() const {
    std::ifstream file(directory_.path(kOwnerName));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& text) { std::ofstream(directory_.path(kOwnerName)) << text; }

  tests::ScratchFolder directory_;
  std::string said_;
};

TEST_F(OwnerOfADirectory, IsOneJobWithAllItsRanks) {
  const auto first = take("one").value();
  const auto second = take("one").value();

  const auto other = take("two");

  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code, Errc::already_exists);
  EXPECT_THAT(other.error().message, HasSubstr("is being written by job one (host "));
  EXPECT_THAT(text(), StartsWith("job one (host "));
}

TEST_F(OwnerOfADirectory, LastsAsLongAsAnyOfItsRanks) {
  auto first = std::make_unique<OwnerClaim>(take("one").value());
  const auto second = take("one").value();
  first.reset();

  EXPECT_FALSE(take("two").has_value());
}

TEST_F(OwnerOfADirectory, LeavesItToTheNextWithoutAWord) {
  { const auto claim = take("one").value(); }

  ASSERT_TRUE(take("two").has_value());
  EXPECT_EQ(said_, "");
}

TEST_F(OwnerOfADirectory, ThatWasKilledIsTakenOverWithAWord) {
  write("job one (host far, process 12)\n");

  ASSERT_TRUE(take("two").has_value());
  EXPECT_THAT(said_,
              HasSubstr("belonged to job one (host far, process 12), which is gone; it is taken over"));
}

TEST_F(OwnerOfADirectory, ThatWasKilledMayStartAgainWithoutAWord) {
  write("job one (host far, process 12)\n");

  ASSERT_TRUE(take("one").has_value());
  EXPECT_EQ(said_, "");
}

TEST_F(OwnerOfADirectory, IsNotAnotherWhoseNameBeginsAlike) {
  const auto first = take("one").value();

  EXPECT_FALSE(take("on").has_value());
  EXPECT_FALSE(take("one more").has_value());
}

TEST(HeldDirectory, IsHeldUntilTheHoldEnds) {
  tests::ScratchFolder folder;
  const auto storage = PosixStorage::open(folder.path("")).value();
  {
    const auto hold = make_held_directory(*storage, "a").value();
    EXPECT_EQ(is_held(*storage, "a"), Held::yes);
    EXPECT_TRUE(hold_directory(*storage, "a").is_empty());
  }

  EXPECT_EQ(is_held(*storage, "a"), Held::no);
  EXPECT_EQ(is_held(*storage, "b"), Held::unknown);
}

}  // namespace
}  // namespace troupe::actors
