#include "core/enum_names.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace troupe::core {

enum class Shade : std::uint8_t { light, dark2, black };

namespace {

enum class Hidden { one, two };
enum class Nothing {};

static_assert(is_enumerator<Shade::dark2>() && !is_enumerator<static_cast<Shade>(3)>());
static_assert(is_enumerator<Hidden::two>() && !is_enumerator<static_cast<Hidden>(-1)>());
static_assert(enum_count<Shade>() == 3 && enum_count<Hidden>() == 2 && enum_count<Nothing>() == 0);

constexpr auto kShades = enum_names<Shade>("light", "dark", "black");

TEST(EnumNames, NamesEachValueAndNoOther) {
  EXPECT_EQ(kShades[Shade::light], "light");
  EXPECT_EQ(kShades[Shade::black], "black");
  EXPECT_EQ(kShades[static_cast<Shade>(3)], "unknown");
}

TEST(EnumNames, FindsTheValueOfAName) {
  EXPECT_EQ(kShades.find("dark"), Shade::dark2);
  EXPECT_EQ(kShades.find("dark2"), std::nullopt);
}

}  // namespace
}  // namespace troupe::core
