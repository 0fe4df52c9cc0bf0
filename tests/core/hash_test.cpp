#include "core/hash.hpp"

#include <gtest/gtest.h>

#include <string>

namespace troupe::core {
namespace {

TEST(Hash, OfNothingIsThePublishedConstantOfXxHash3) {
  EXPECT_EQ(hash64(std::string_view{}), 0x2d06800538d394c2ULL);
}

TEST(Hash, DependsOnContentAndSeed) {
  const std::string text = "plan";

  EXPECT_EQ(hash64(text), hash64(std::as_bytes(std::span(text))));
  EXPECT_NE(hash64("plan"), hash64("plam"));
  EXPECT_NE(hash64("plan"), hash64("plan", 1));
}

}  // namespace
}  // namespace troupe::core
