#include "core/utf8.hpp"

#include <gtest/gtest.h>

namespace troupe::core {
namespace {

TEST(PrintableText, KeepsLettersOfAllKindsAndEndsOfLines) {
  EXPECT_EQ(printable_of(""), "");
  EXPECT_EQ(printable_of("two\tlines\n\xc3\xa4 \xe2\x82\xac \xf0\x9f\x8e\xad"),
            "two\tlines\n\xc3\xa4 \xe2\x82\xac \xf0\x9f\x8e\xad");
  EXPECT_EQ(printable_of("\xc2\xa0"), "\xc2\xa0") << "a blank, the first behind the control characters";
}

TEST(PrintableText, HasNothingThatMovesATerminalsCursor) {
  EXPECT_EQ(printable_of("a\x1b[2Jb\rc\x7f"), "a\ufffd[2Jb\ufffdc\ufffd");
  EXPECT_EQ(printable_of(std::string_view("\0x", 2)), "\ufffdx");
  EXPECT_EQ(printable_of("\xc2\x9b"
                         "31m"),
            "\ufffd31m")
      << "the control sequence introducer in one character";
}

TEST(PrintableText, HasOneReplacementPerByteThatIsNotUtf8s) {
  EXPECT_EQ(printable_of("\xff\xe7z"), "\ufffd\ufffdz");
  EXPECT_EQ(printable_of("\xe2\x82"), "\ufffd\ufffd") << "a character's end is missing";
  EXPECT_TRUE(is_utf8(printable_of("\xed\xa0\x80\xc0\xaf")));
}

}  // namespace
}  // namespace troupe::core
