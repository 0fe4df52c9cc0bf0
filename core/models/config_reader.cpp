#include "core/models/config_reader.hpp"

#include <fmt/format.h>

#include "core/errors.hpp"
#include "core/models/known_keys.hpp"

namespace troupe::core {

namespace {

using Json = nlohmann::json;

/// For messages.
std::string shown(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 60);
}

}  // namespace

std::vector<const Json*> ConfigReader::find_all(const std::string& key) {
  seen_.insert(key);
  std::vector<const Json*> values;
  if (ignored_.contains(prefix_ + key)) return values;
  for (const Json* object : {&root_, nested_}) {
    if (object == nullptr) continue;
    const auto found = object->find(key);
    if (found != object->end() && !found->is_null()) values.push_back(&*found);
  }
  return values;
}

const Json* ConfigReader::find(const std::string& key) {
  const auto values = find_all(key);
  if (values.empty()) return nullptr;
  if (*values.front() != *values.back())
    complain(fmt::format("key '{}{}' is {}, and in text_config it is {}; remove the wrong one", prefix_, key,
                         shown(*values.front()), shown(*values.back())));
  return values.front();
}

bool ConfigReader::is_said(const std::string& key) const {
  return root_.contains(key) || (nested_ != nullptr && nested_->contains(key)) ||
         ignored_.contains(prefix_ + key);
}

void ConfigReader::complain(std::string what) {
  if (complaint_.empty()) complaint_ = std::move(what);
}

void ConfigReader::complain_kind(const std::string& key, const Json& json) {
  complain(fmt::format("key '{}{}' has the value {}, which has a wrong kind or out of range", prefix_, key,
                       shown(json)));
}

void ConfigReader::must_be(const std::string& key, const Json& value) {
  const auto* json = find(key);
  if (json == nullptr || *json == value) return;
  complain(fmt::format("key '{}{}' is {}; only {} can be converted, another value changes the maths", prefix_,
                       key, shown(*json), shown(value)));
}

void ConfigReader::refuse(const std::string& key, std::string_view why) {
  complain(fmt::format("key '{}{}' changes the maths and cannot be converted: {}", prefix_, key, why));
}

Result<void> ConfigReader::check_unknown(const Json& object, const std::string& prefix,
                                         const std::set<std::string_view>& harmless,
                                         std::map<std::string, std::string>* kept) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_null() || seen_.contains(key) || ignored_.contains(prefix + key)) continue;
    const bool says_nothing = is_harmless(key) || is_neutral(key, value) || harmless.contains(key);
    if (!says_nothing && is_of_other_models(key)) {
      of_others_.push_back(prefix + key);
    } else if (!says_nothing) {
      return fail(
          Errc::invalid_argument,
          "key '{0}{1}' is unknown and might change the computation (its value is {2}); if it does not, "
          "--ignore {0}{1} passes over it",
          prefix, key, shown(value));
    }
    if (kept != nullptr) (*kept)[prefix + key] = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  }
  return {};
}

Result<void> ConfigReader::finish(std::map<std::string, std::string>* kept,
                                  const std::set<std::string_view>& harmless) {
  if (!complaint_.empty()) return fail(Errc::invalid_argument, "{}", complaint_);
  TRY(check_unknown(root_, prefix_, harmless, kept));
  if (nested_ != nullptr) TRY(check_unknown(*nested_, prefix_ + "text_config.", harmless, kept));
  return {};
}

}  // namespace troupe::core
