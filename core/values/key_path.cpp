#include "core/values/key_path.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::core {

std::string to_string(const Key& key) {
  if (const auto* index = std::get_if<std::int64_t>(&key)) return fmt::format("{}", *index);
  return fmt::format("'{}'", std::get<std::string>(key));
}

std::string to_string(const KeyPath& path) {
  std::string text = "(";
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (i > 0) text += ", ";
    text += to_string(path[i]);
  }
  return text + (path.size() == 1 ? ",)" : ")");
}

KeyPath Trail::path() const {
  KeyPath result;
  for (const Trail* at = this; at->parent_ != nullptr; at = at->parent_) {
    result.push_back(at->key_ != nullptr ? *at->key_ : Key(at->index_));
  }
  std::reverse(result.begin(), result.end());
  return result;
}

std::string to_string(const Trail& trail) {
  // For a message: keys come from other sources, and 64 long ones would fill the screen.
  constexpr std::size_t kMostBytes = 60;
  KeyPath path = trail.path();
  for (Key& key : path) {
    auto* name = std::get_if<std::string>(&key);
    if (name != nullptr && name->size() > kMostBytes) name->replace(kMostBytes, std::string::npos, "...");
  }
  return to_string(path);
}

}  // namespace troupe::core
