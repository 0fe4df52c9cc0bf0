#include "core/json_object.hpp"

#include <set>
#include <string>
#include <vector>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

using Json = nlohmann::json;

constexpr int kMaxObjectDepth = 16;

}  // namespace

Result<Json> parse_json_object(std::string_view text, std::string_view what) {
  bool deep = false;
  std::string twice;
  std::vector<std::set<std::string>> open;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    deep = deep || depth > kMaxObjectDepth;
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key && !open.back().insert(parsed.get_ref<const std::string&>()).second)
      twice = parsed.get<std::string>();
    return !deep;
  };
  Json json = Json::parse(text, watch, false);
  if (deep || json.is_discarded() || !json.is_object())
    return fail(Errc::corrupt, "{}: {} bytes are not a JSON object of at most {} levels", what, text.size(),
                kMaxObjectDepth);
  if (!twice.empty()) return fail(Errc::corrupt, "{}: '{}' is there twice", what, twice);
  return json;
}

}  // namespace troupe::core
