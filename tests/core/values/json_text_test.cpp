#include "core/values/json_text.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>

namespace troupe::core {
namespace {

std::string as_json(std::string_view text) {
  std::string json;
  append_string(json, text);
  return json;
}

TEST(JsonText, EscapesWhatJsonAsksFor) {
  EXPECT_EQ(as_json(""), "\"\"");
  EXPECT_EQ(as_json("a/b \"c\" \\d"), R"("a/b \"c\" \\d")");
  EXPECT_EQ(as_json(std::string("\n\t\x01\x7f\0", 5)), "\"\\n\\t\\u0001\x7f\\u0000\"");
  EXPECT_EQ(as_json("\u00e9\u4e2d"), "\"\u00e9\u4e2d\"");
  EXPECT_EQ(as_json("a\xff"), "\"a\xef\xbf\xbd\"");
}

RC_GTEST_PROP(JsonText, IsWhatTheJsonLibraryWrites, (const std::string& text)) {
  const auto replace = nlohmann::json::error_handler_t::replace;

  RC_ASSERT(as_json(text) == nlohmann::json(text).dump(-1, ' ', false, replace));
}

TEST(JsonText, HasNumbersAndSizes) {
  std::string json;

  append_number(json, 0);
  append_number(json, UINT64_MAX);
  append_sizes(json, {});
  append_sizes(json, std::vector<std::int64_t>{INT64_MAX, 0, 12});

  EXPECT_EQ(json, "018446744073709551615[][9223372036854775807,0,12]");
}

}  // namespace
}  // namespace troupe::core
