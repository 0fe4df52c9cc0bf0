#include "core/values/json_object.hpp"

#include "core/errors.hpp"
#include "core/values/json_check.hpp"

namespace troupe::core {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxObjectDepth = 16;

}  // namespace

Result<Json> parse_json_object(std::string_view text, std::string_view what) {
  const JsonCheck check = check_json(text, kMaxObjectDepth);
  Json json = check.fits ? Json::parse(text, nullptr, false) : Json(Json::value_t::discarded);
  if (json.is_discarded() || !json.is_object())
    return fail(Errc::corrupt, "{}: {} bytes are not a JSON object of at most {} levels", what, text.size(),
                kMaxObjectDepth);
  if (!check.twice.empty()) return fail(Errc::corrupt, "{}: '{}' is there twice", what, check.twice);
  return json;
}

}  // namespace troupe::core
