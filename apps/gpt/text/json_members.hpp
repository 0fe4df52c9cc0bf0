#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::apps::gpt {

/// Members of an object in a tokenizer.json that exist and have the requested type; Errc::corrupt names the
/// first that does not. The object must outlive this.
class JsonMembers {
 public:
  using Json = nlohmann::json;

  JsonMembers(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  /// Null if it is missing or null.
  const Json* find(const char* name) const {
    if (!json_.is_object()) return nullptr;
    const auto found = json_.find(name);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  /// Without members if it is missing.
  const Json& inner(const char* name) const {
    static const Json kNothing;
    const Json* found = find(name);
    return found != nullptr ? *found : kNothing;
  }
  core::Result<bool> flag(const char* name) const {
    const Json* found = find(name);
    if (found == nullptr || !found->is_boolean()) return wrong("true or false", name);
    return found->get<bool>();
  }
  core::Result<bool> flag(const char* name, bool fallback) const {
    return find(name) == nullptr ? core::Result<bool>(fallback) : flag(name);
  }
  core::Result<std::string> text(const char* name) const {
    const Json* found = find(name);
    if (found == nullptr || !found->is_string()) return wrong("text", name);
    return found->get<std::string>();
  }
  core::Result<std::string> text(const char* name, const char* fallback) const {
    return find(name) == nullptr ? core::Result<std::string>(fallback) : text(name);
  }
  core::Result<const Json*> list(const char* name) const {
    const Json* found = find(name);
    if (found == nullptr || !found->is_array()) return wrong("a list", name);
    return found;
  }
  /// Null, false, 0 and "" all count as nothing.
  core::Result<void> must_be_nothing(const char* name) const {
    const Json* found = find(name);
    if (found == nullptr || *found == false || *found == 0 || *found == "") return {};
    return refuse_value(name, "only none is");
  }
  tl::unexpected<core::Error> refuse_value(const char* name, std::string_view reason) const {
    return core::fail(core::Errc::unavailable, "tokenizer.json: {}.{} is {}, which is not taken; {}", path_,
                      name, excerpt(inner(name)), reason);
  }
  /// For a part whose "type" is not one of those that are known.
  tl::unexpected<core::Error> unknown_kind(const std::string& kind, std::string_view known) const {
    return core::fail(core::Errc::unavailable, "tokenizer.json: the {} {} is not known; expected {}", path_,
                      core::quoted_excerpt(kind), known);
  }
  static std::string excerpt(const Json& json) {
    return core::quoted_excerpt(json.dump(-1, ' ', true, Json::error_handler_t::replace));
  }
  const std::string& path() const { return path_; }

 private:
  tl::unexpected<core::Error> wrong(const char* expected, const char* name) const {
    return core::fail(core::Errc::corrupt, "tokenizer.json: expected {} as {}{}{}", expected, path_,
                      path_.empty() ? "" : ".", name);
  }

  const Json& json_;
  std::string path_;
};

/// Calls read() with each part of a "Sequence" and its type, or with the part itself.
template <class Read>
core::Result<void> each_part(const nlohmann::json& json, const char* path, const char* members,
                             const Read& read) {
  const JsonMembers part(json, path);
  const auto kind = TRY(part.text("type"));
  if (kind != "Sequence") return read(part, kind);
  for (const auto& one : *TRY(part.list(members))) {
    const JsonMembers inner(one, path);
    TRY(read(inner, TRY(inner.text("type"))));
  }
  return {};
}

}  // namespace troupe::apps::gpt
