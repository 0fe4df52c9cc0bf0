#include "posix/entropy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace troupe::posix {
namespace {

TEST(UniqueName, IsSixteenDigitsThatNoOtherNameHas) {
  std::set<std::string> names;
  for (int i = 0; i < 100; ++i) {
    const auto name = unique_name();
    EXPECT_THAT(name, testing::MatchesRegex("[0-9a-f]{16}"));
    names.insert(name);
  }

  EXPECT_EQ(names.size(), 100);
}

}  // namespace
}  // namespace troupe::posix
