#include <gtest/gtest.h>

#include <string>

#include "core/interop/crc32.hpp"
#include "core/utf8.hpp"
#include "tests/core/interop/golden.hpp"

namespace troupe::core {
namespace {

// The check value of CRC-32/ISO-HDLC, and zlib's for the others.
TEST(Crc32, HasTheValuesOfZlib) {
  EXPECT_EQ(crc32(bytes_of("123456789")), 0xcbf4'3926U);
  EXPECT_EQ(crc32({}), 0U);
  EXPECT_EQ(crc32(bytes_of("The quick brown fox jumps over the lazy dog")), 0x414f'a339U);
}

TEST(Crc32, DoesNotDependOnHowTheBytesAreCut) {
  const auto bytes = bytes_of("The quick brown fox jumps over the lazy dog");
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    Crc32 crc;

    crc.update(std::span(bytes).first(cut));
    crc.update(std::span(bytes).subspan(cut));

    EXPECT_EQ(crc.value(), 0x414f'a339U) << cut;
  }
}

// The well-formed sequences of Unicode's table 3-7, at their limits.
TEST(Utf8, KnowsTheLimitsOfEveryForm) {
  for (const std::string_view text : {"", "a\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                                      "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_utf8(text)) << hex_of(bytes_of(text));
  }
  for (const std::string_view text :
       {"\x80", "\xc1\xbf", "\xc2", "\xc2\x41", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xe1\x80", "\xe1\x80\x41",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "a\xf0\x90\x80"}) {
    EXPECT_FALSE(is_utf8(text)) << hex_of(bytes_of(text));
  }
}

}  // namespace
}  // namespace troupe::core
