#include "apps/command_line/json_text.hpp"

#include <nlohmann/json.hpp>

namespace troupe::apps {

std::string json_text(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace troupe::apps
