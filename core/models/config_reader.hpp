#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/models/config_fields.hpp"
#include "core/result.hpp"
#include "core/values/json_object.hpp"

namespace troupe::core {

/// Reads the keys of config.json and remembers which were asked for, so that unknown keys are found. The
/// first error is kept; from then on values are meaningless, and finish() returns the error.
class ConfigReader {
 public:
  /// Both objects must outlive the reader. `nested` may be null: keys that `root` lacks are looked up there.
  ConfigReader(const nlohmann::json& root, const nlohmann::json* nested, std::string prefix,
               const std::set<std::string>& ignored)
      : root_(root), nested_(nested), prefix_(std::move(prefix)), ignored_(ignored) {}

  /// Null when the key is missing, null or ignored. An error when both objects have it with values that are
  /// not equal; where a key may differ, use find_all().
  const nlohmann::json* find(const std::string& key);
  /// What either object has under the key, `root` first; nothing when it is ignored.
  std::vector<const nlohmann::json*> find_all(const std::string& key);
  /// Whether the file has the key, even if its value is null, or the key is ignored.
  bool is_said(const std::string& key) const;

  template <class T>
  std::optional<T> maybe(const std::string& key) {
    const auto* json = find(key);
    if (json == nullptr) return {};
    T value{};
    if (!take(*json, value)) complain_kind(key, *json);
    return value;
  }
  template <class T>
  T required(const std::string& key) {
    auto value = maybe<T>(key);
    if (!value) complain("key '" + prefix_ + key + "' is missing");
    return value ? std::move(*value) : T{};
  }
  template <class T>
  T value_or(const std::string& key, T fallback) {
    return maybe<T>(key).value_or(std::move(fallback));
  }
  std::int64_t size(const std::string& key) { return required<std::int64_t>(key); }

  /// For a key without a field: any other value, if present, would change the maths and is an error.
  void must_be(const std::string& key, const nlohmann::json& value);
  void refuse(const std::string& key, std::string_view why);
  void complain(std::string what);

  /// Errc::invalid_argument: the first error, or a key that was not asked for and is neither harmless nor
  /// neutral nor of other models (core/models/known_keys.hpp). Those that are, and those in `harmless`, are
  /// added to `kept`, which may be null.
  Result<void> finish(std::map<std::string, std::string>* kept,
                      const std::set<std::string_view>& harmless = {});
  /// After finish(): the keys of other models that are there and say something.
  const std::vector<std::string>& of_other_models() const { return of_others_; }

 private:
  void complain_kind(const std::string& key, const nlohmann::json& json);
  Result<void> check_unknown(const nlohmann::json& object, const std::string& prefix,
                             const std::set<std::string_view>& harmless,
                             std::map<std::string, std::string>* kept);

  const nlohmann::json& root_;
  const nlohmann::json* nested_;
  std::string prefix_;
  const std::set<std::string>& ignored_;
  std::set<std::string> seen_;
  std::vector<std::string> of_others_;
  std::string complaint_;
};

}  // namespace troupe::core
