#include "core/number.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

namespace troupe::core {
namespace {

TEST(Number, ReadsTheWholeText) {
  EXPECT_EQ(parse_number<int>("12", {0, 100}), 12);
  EXPECT_EQ(parse_number<int>("-3", {-3, 3}), -3);
  EXPECT_EQ(parse_number<std::uint64_t>("18446744073709551615", {0, UINT64_MAX}), UINT64_MAX);
  EXPECT_EQ(parse_number<double>("2.5", {0, 10}), 2.5);
  EXPECT_EQ(parse_number<double>("1e-3", {0, 10}), 1e-3);
  for (const char* text : {"", " 1", "1 ", "1x", "0x10", "1,2", "+1", "true", "1e1", "1.0"}) {
    EXPECT_FALSE(parse_number<int>(text, {0, 100})) << text;
  }
  for (const char* text : {"", " 1", "1 ", "1x", "1.5.", "e"}) {
    EXPECT_FALSE(parse_number<double>(text, {0, 100})) << text;
  }
}

TEST(Number, LiesWithinItsBoundsAndNaNNever) {
  EXPECT_EQ(parse_number<int>("1", {1, 3}), 1);
  EXPECT_EQ(parse_number<int>("3", {1, 3}), 3);
  for (const char* text : {"0", "4", "-1", "2147483648", "99999999999999999999"}) {
    EXPECT_FALSE(parse_number<int>(text, {1, 3})) << text;
  }
  EXPECT_FALSE(parse_number<std::uint64_t>("-1", {0, UINT64_MAX}));
  EXPECT_FALSE(parse_number<std::uint64_t>("18446744073709551616", {0, UINT64_MAX}));
  for (const char* text : {"nan", "NaN", "-nan", "inf", "-inf", "infinity", "1e999", "-0.1", "1.1"}) {
    EXPECT_FALSE(parse_number<double>(text, {0, 1})) << text;
  }
}

TEST(Number, ARefusalSaysWhatWasExpectedAndFound) {
  EXPECT_EQ(parse_number<int>("many", {1, 8}).error(),
            (Error{Errc::invalid_argument, "expected a whole number from 1 to 8, found \"many\""}));
  EXPECT_EQ(parse_number<double>("nan", {0, 0.5}).error().message,
            "expected a number from 0 to 0.5, found \"nan\"");
}

TEST(Number, RefusalShowsALongTextsBeginningWithoutControlCharacters) {
  const std::string text = "\x1b[2J\n" + std::string(1000, '7');

  EXPECT_EQ(
      parse_number<int>(text, {1, 8}).error().message,
      "expected a whole number from 1 to 8, found \"?[2J?" + std::string(35, '7') + "...\" of 1005 bytes");
}

}  // namespace
}  // namespace troupe::core
