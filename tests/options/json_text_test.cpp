#include "apps/command_line/json_text.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace troupe::apps {
namespace {

TEST(JsonText, IsIndentedInKeyOrderOrOneLine) {
  const nlohmann::ordered_json json = {{"ranks", 2}, {"files", {"a"}}};

  EXPECT_EQ(json_text(json), "{\n  \"ranks\": 2,\n  \"files\": [\n    \"a\"\n  ]\n}\n");
  EXPECT_EQ(json_text(json, -1), "{\"ranks\":2,\"files\":[\"a\"]}\n");
}

TEST(JsonText, ReplacesWhatIsNoUtf8AndKeepsTheRest) {
  // A byte that begins nothing, the first of two bytes alone, an overlong "/", then text that is UTF-8.
  const nlohmann::ordered_json json = {"\xff", "caf\xc3", "\xc0\xaf", "caf\xc3\xa9"};

  EXPECT_EQ(json_text(json, -1),
            "[\"\xef\xbf\xbd\",\"caf\xef\xbf\xbd\",\"\xef\xbf\xbd\xef\xbf\xbd\",\"caf\xc3\xa9\"]\n");
}

}  // namespace
}  // namespace troupe::apps
