#include "core/values/key_path.hpp"

#include <gtest/gtest.h>

namespace troupe::core {
namespace {

TEST(KeyPath, ReadsLikeATuple) {
  EXPECT_EQ(to_string(KeyPath{}), "()");
  EXPECT_EQ(to_string(KeyPath{"rank"}), "('rank',)");
  EXPECT_EQ(to_string(KeyPath{"model", 0, "w"}), "('model', 0, 'w')");
}

TEST(KeyPath, ATrailKnowsItsPathAndDepth) {
  const Key name = "model";
  const Trail root;
  const Trail model(root, name);
  const Trail first(model, 0);

  EXPECT_EQ(root.depth(), 0);
  EXPECT_EQ(first.depth(), 2);
  EXPECT_EQ(first.path(), (KeyPath{"model", 0}));
  EXPECT_EQ(to_string(first), "('model', 0)");
}

}  // namespace
}  // namespace troupe::core
