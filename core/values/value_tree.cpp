#include <fmt/format.h>

#include "core/values/tree.hpp"
#include "core/values/value.hpp"

namespace troupe::core {
namespace {

std::string list_of(const std::vector<KeyPath>& paths) {
  std::string text = "[";
  for (const KeyPath& path : paths) text += (text.size() > 1 ? ", " : "") + to_string(path);
  return text + "]";
}

}  // namespace

std::string to_string(const TreeDifference& difference) {
  std::string mismatches = "[";
  for (const auto& [path, left, right] : difference.mismatches) {
    if (mismatches.size() > 1) mismatches += ", ";
    mismatches += fmt::format("({}, {}, {})", to_string(path), left, right);
  }
  return fmt::format("only left: {}, only right: {}, mismatches: {}]", list_of(difference.only_left),
                     list_of(difference.only_right), mismatches);
}

TreeDifference diff(const Value& left, const Value& right) {
  TreeDifference result;
  TreeRules<Value>::compare(left, right, Trail(), result);
  return result;
}

Result<void> merge(Value& into, Value from) {
  return TreeRules<Value>::merge(into, std::move(from));
}

}  // namespace troupe::core
