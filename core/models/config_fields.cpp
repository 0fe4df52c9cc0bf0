#include "core/models/config_fields.hpp"

#include <array>
#include <cmath>
#include <utility>

namespace troupe::core {

namespace {

using Json = nlohmann::json;

constexpr std::array<std::pair<DType, const char*>, 3> kConfigDTypes{
    {{DType::f32, "float32"}, {DType::f16, "float16"}, {DType::bf16, "bfloat16"}}};
/// Entries in a list with one per layer.
constexpr std::size_t kMaxEntries = std::size_t{1} << 16;

}  // namespace

bool take(const Json& json, std::int64_t& field) {
  if (!json.is_number_integer()) return false;
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > kMaxConfigSize) return false;
  const auto value = json.get<std::int64_t>();
  if (value < 0 || value > kMaxConfigSize) return false;
  field = value;
  return true;
}

bool take(const Json& json, double& field) {
  if (!json.is_number() || !std::isfinite(json.get<double>())) return false;
  field = json.get<double>();
  return true;
}

bool take(const Json& json, bool& field) {
  if (!json.is_boolean()) return false;
  field = json.get<bool>();
  return true;
}

bool take(const Json& json, std::string& field) {
  if (!json.is_string()) return false;
  field = json.get<std::string>();
  return true;
}

bool take(const Json& json, DType& field) {
  for (const auto& [dtype, name] : kConfigDTypes) {
    if (json != name) continue;
    field = dtype;
    return true;
  }
  return false;
}

bool take(const Json& json, std::vector<std::int64_t>& field) {
  if (json.is_null()) {
    field.clear();
    return true;
  }
  if (!json.is_array() || json.size() > kMaxEntries) return false;
  std::vector<std::int64_t> values(json.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!take(json[i], values[i])) return false;
  }
  field = std::move(values);
  return true;
}

Json put(DType field) {
  for (const auto& [dtype, name] : kConfigDTypes) {
    if (dtype == field) return name;
  }
  return std::string(name_of(field));
}

Json put(const std::vector<std::int64_t>& field) {
  if (field.empty()) return {};
  return Json(field);
}

}  // namespace troupe::core
