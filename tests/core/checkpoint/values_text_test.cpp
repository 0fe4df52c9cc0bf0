#include "core/checkpoint/values_text.hpp"

#include <gtest/gtest.h>

namespace troupe::core {
namespace {

// Covers save-14, stored-9.
TEST(ObjectsText, IsReadBackWithItsTypes) {
  const std::vector<ManifestObject> objects{{"rng", {2, 4}, {1, 3}, Value::tuple({1, "ä"})},
                                            {"", {}, {}, 0.5}};

  const auto text = objects_text(objects);

  ASSERT_TRUE(text);
  const auto read = parse_objects(*text);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, objects);
}

TEST(ObjectsText, RefusesAKeyThatIsNoUtf8) {
  EXPECT_FALSE(objects_text({{"\xff", {1}, {0}, 1}}));
}

TEST(ObjectsText, RefusesACellOutsideItsGrid) {
  EXPECT_FALSE(objects_text({{"rng", {2, 4}, {2, 0}, 1}}));
}

TEST(ObjectsText, OfStrangersIsRefusedNotObeyed) {
  for (const char* text : {"", "{}", "[1]", "[[1,[1],[0],2]]", "[[\"k\",[-1],[0],2]]", "[[\"k\",[1],0,2]]"}) {
    EXPECT_FALSE(parse_objects(text)) << text;
  }
}

}  // namespace
}  // namespace troupe::core
