#include "apps/gpt/text/unicode.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace troupe::apps::gpt {
namespace {

std::string repeated(const std::string& unit, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += unit;
  return text;
}

// Moving each mark to its place, one by one, would take hours.
TEST(NormalForm, SortsAMillionMarks) {
  const auto text = utf16_of("a" + repeated("\u0301\u0323", 500'000)).value();

  for (const char* name : {"NFC", "NFD", "NFKC", "NFKD"}) {
    const auto normal = utf8_of(NormalForm::named(name).value().apply(text).value());

    const bool composes = std::string(name).back() == 'C';
    EXPECT_EQ(normal,
              (composes ? "\u1ea1" + repeated("\u0323", 499'999) : "a" + repeated("\u0323", 500'000)) +
                  repeated("\u0301", 500'000))
        << name;
  }
}

TEST(NormalForm, SortsMarksThatOthersBecome) {
  // A Tibetan vowel sign becomes two marks; a half-width voiced mark one, but only in the compatible forms.
  const auto tibetan = utf16_of("\u0f40" + repeated("\u0f73", 100)).value();
  const auto kana = utf16_of(repeated("\uff9e\u0301", 100)).value();

  EXPECT_EQ(utf8_of(NormalForm::named("NFD").value().apply(tibetan).value()),
            "\u0f40" + repeated("\u0f71", 100) + repeated("\u0f72", 100));
  EXPECT_EQ(utf8_of(NormalForm::named("NFC").value().apply(kana).value()), repeated("\uff9e\u0301", 100));
  EXPECT_EQ(utf8_of(NormalForm::named("NFKD").value().apply(kana).value()),
            repeated("\u3099", 100) + repeated("\u0301", 100));
}

TEST(Blanks, AreThoseOfUnicode) {
  EXPECT_EQ(blanks_at_start(" \t\u00a0\u3000x "), 7U);
  EXPECT_EQ(blanks_at_end("x\u2028 \n"), 5U);
  EXPECT_EQ(blanks_at_start("\u200bx"), 0U);
  EXPECT_TRUE(begins_with_word("\u00e9-") && ends_with_word("-\u0301") && ends_with_word("_"));
  EXPECT_FALSE(begins_with_word("-a") || ends_with_word("") || ends_with_word("a\u00b2"));
}

}  // namespace
}  // namespace troupe::apps::gpt
