#include "core/state/state_dict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/errors.hpp"

namespace troupe::core {
namespace {

using Entry = StateNode::Entry;

/// The key of a tensor, object or factory; null for other nodes.
const std::string* key_of(const StateNode& node) {
  if (const auto* tensor = node.as_tensor()) return &tensor->tensor.key;
  if (const auto* object = node.as_object()) return &object->object.key;
  if (const auto* factory = node.as_factory()) return &factory->source.tensor.key;
  return nullptr;
}

void set_key(StateNode& node, std::string key) {
  if (auto* tensor = node.as_tensor()) {
    tensor->tensor.key = std::move(key);
  } else if (auto* object = node.as_object()) {
    object->object.key = std::move(key);
  } else {
    TensorFactory factory = *node.as_factory();
    factory.source.tensor.key = std::move(key);
    node = StateNode(std::move(factory));
  }
}

/// Replaces each key by rename(key).
void rename_keys(StateNode& root, const std::function<std::string(const std::string&)>& rename) {
  for_each_leaf(root, [&](StateNode& leaf) {
    if (const auto* key = key_of(leaf)) set_key(leaf, rename(*key));
  });
}

/// The items that are not empty; as a list if none is missing.
StateNode compact(std::vector<StateNode> items, const std::vector<bool>& present) {
  if (std::find(present.begin(), present.end(), false) == present.end()) return StateNode(std::move(items));
  StateNode::Map part;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (present[i]) part.entries().push_back({Key(static_cast<std::int64_t>(i)), std::move(items[i])});
  }
  return part;
}

bool same_entries(const std::vector<Entry>& a, const std::vector<Entry>& b) {
  if (a.size() != b.size()) return false;
  const auto sorted = [](const std::vector<Entry>& entries) {
    std::vector<const Entry*> result;
    result.reserve(entries.size());
    for (const Entry& entry : entries) result.push_back(&entry);
    std::sort(result.begin(), result.end(), [](const auto* x, const auto* y) { return x->key < y->key; });
    return result;
  };
  const auto left = sorted(a);
  const auto right = sorted(b);
  return std::equal(left.begin(), left.end(), right.begin(),
                    [](const auto* x, const auto* y) { return x->key == y->key && x->value == y->value; });
}

Result<Value> value_at(const StateNode& node, const Trail& at) {
  if (const auto* value = node.as_value()) return *value;
  if (const auto* map = node.as_map()) {
    std::vector<Value::Entry> entries;
    for (const auto& [key, child] : map->entries()) {
      auto value = TRY(value_at(child, Trail(at, key)));
      entries.push_back({key, std::move(value)});
    }
    return Value(TRY(Value::Map::from_entries(std::move(entries))));
  }
  if (const auto* list = node.as_list()) {
    Value::List items;
    for (const StateNode& item : *list) {
      items.push_back(TRY(value_at(item, Trail(at, static_cast<std::int64_t>(items.size())))));
    }
    return Value(std::move(items));
  }
  return fail(Errc::invalid_argument, "there is a {} at {}, expected a plain value", node.type_name(),
              to_string(at));
}

}  // namespace

StateNode::Map::Map() = default;
StateNode::Map::Map(const Map&) = default;
StateNode::Map::Map(Map&&) noexcept = default;
StateNode::Map& StateNode::Map::operator=(const Map&) = default;
StateNode::Map& StateNode::Map::operator=(Map&&) noexcept = default;
StateNode::Map::~Map() = default;

StateNode::Map::Map(std::initializer_list<Entry> entries) {
  for (const Entry& entry : entries) set(entry.key, entry.value);
}

StateNode::Map& StateNode::Map::set(Key key, StateNode node) {
  if (StateNode* known = find(key)) {
    *known = std::move(node);
  } else {
    entries_.push_back({std::move(key), std::move(node)});
  }
  return *this;
}

const StateNode* StateNode::Map::find(const Key& key) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.key == key; });
  return found == entries_.end() ? nullptr : &found->value;
}

StateNode* StateNode::Map::find(const Key& key) {
  return const_cast<StateNode*>(std::as_const(*this).find(key));
}

StateNode::StateNode(Value value) {
  if (auto* map = value.as_map()) {
    Map nodes;
    for (const auto& [key, child] : map->entries()) nodes.entries().push_back({key, StateNode(child)});
    data_ = std::move(nodes);
  } else if (auto* items = value.as_list()) {
    List nodes;
    for (Value& item : *items) nodes.push_back(StateNode(std::move(item)));
    data_ = std::move(nodes);
  } else {
    data_ = std::move(value);
  }
}

StateNode::StateNode(TensorFactory factory)
    : data_(std::make_shared<const TensorFactory>(std::move(factory))) {}

const TensorFactory* StateNode::as_factory() const {
  const auto* factory = std::get_if<std::shared_ptr<const TensorFactory>>(&data_);
  return factory != nullptr ? factory->get() : nullptr;
}

bool StateNode::is_empty() const {
  if (const auto* map = as_map()) return map->entries().empty();
  if (const auto* list = as_list()) return list->empty();
  return false;
}

std::string_view StateNode::type_name() const noexcept {
  constexpr std::array<std::string_view, 7> kNames{"",       "map",         "list",   "tensor",
                                                   "object", "local value", "factory"};
  return as_value() != nullptr ? as_value()->type_name() : kNames.at(data_.index());
}

bool operator==(const StateNode& a, const StateNode& b) {
  if (a.data_.index() != b.data_.index()) return false;
  if (const auto* map = a.as_map()) return same_entries(map->entries(), b.as_map()->entries());
  if (const auto* factory = a.as_factory()) return factory->source == b.as_factory()->source;
  if (const auto* list = a.as_list()) return *list == *b.as_list();
  if (const auto* tensor = a.as_tensor()) return *tensor == *b.as_tensor();
  if (const auto* object = a.as_object()) return *object == *b.as_object();
  if (const auto* local = a.as_local()) return *local == *b.as_local();
  return *a.as_value() == *b.as_value();
}

void for_each_leaf(const StateNode& root, const std::function<void(const StateNode&)>& visit) {
  if (const auto* map = root.as_map()) {
    for (const Entry& entry : map->entries()) for_each_leaf(entry.value, visit);
  } else if (const auto* list = root.as_list()) {
    for (const StateNode& item : *list) for_each_leaf(item, visit);
  } else {
    visit(root);
  }
}

void for_each_leaf(StateNode& root, const std::function<void(StateNode&)>& visit) {
  if (auto* map = root.as_map()) {
    for (Entry& entry : map->entries()) for_each_leaf(entry.value, visit);
  } else if (auto* list = root.as_list()) {
    for (StateNode& item : *list) for_each_leaf(item, visit);
  } else {
    visit(root);
  }
}

Extraction extract(const StateNode& root, const std::function<bool(const StateNode&)>& predicate) {
  if (const auto* map = root.as_map()) {
    StateNode::Map matching;
    StateNode::Map rest;
    for (const auto& [key, child] : map->entries()) {
      if (child.is_leaf()) {
        (predicate(child) ? matching : rest).entries().push_back({key, child});
        continue;
      }
      Extraction parts = extract(child, predicate);
      if (!parts.rest.is_empty() || child.is_empty()) rest.entries().push_back({key, std::move(parts.rest)});
      if (!parts.matching.is_empty()) matching.entries().push_back({key, std::move(parts.matching)});
    }
    return {std::move(matching), std::move(rest)};
  }
  const auto* list = root.as_list();
  CHECK(list != nullptr, "only maps and lists can be split");
  const StateNode nothing = StateNode::Map{};
  Extraction parts{StateNode::List(), StateNode::List()};
  std::vector<bool> in_matching;
  std::vector<bool> in_rest;
  for (const StateNode& item : *list) {
    Extraction halves{nothing, nothing};
    if (item.is_leaf()) {
      (predicate(item) ? halves.matching : halves.rest) = item;
    } else {
      halves = extract(item, predicate);
    }
    in_matching.push_back(!halves.matching.is_empty());
    in_rest.push_back(!halves.rest.is_empty() || item.is_empty());
    parts.matching.as_list()->push_back(std::move(halves.matching));
    parts.rest.as_list()->push_back(std::move(halves.rest));
  }
  return {compact(std::move(*parts.matching.as_list()), in_matching),
          compact(std::move(*parts.rest.as_list()), in_rest)};
}

Result<void> merge(StateNode& into, StateNode from) {
  return TreeRules<StateNode, true>::merge(into, std::move(from));
}

StateNode restore_lists(StateNode root, const StateNode& like) {
  if (auto* list = root.as_list()) {
    const auto* model = like.as_list();
    for (std::size_t i = 0; model != nullptr && i < std::min(list->size(), model->size()); ++i) {
      (*list)[i] = restore_lists(std::move((*list)[i]), (*model)[i]);
    }
    return root;
  }
  auto* map = root.as_map();
  if (map == nullptr) return root;
  if (const auto* model = like.as_map()) {
    for (auto& [key, child] : map->entries()) {
      if (const StateNode* other = model->find(key)) child = restore_lists(std::move(child), *other);
    }
    return root;
  }
  const auto* model = like.as_list();
  if (model == nullptr) return root;
  if (map->entries().empty()) return StateNode(StateNode::List{});
  std::vector<StateNode> items(model->size());
  std::vector<bool> present(model->size());
  for (auto& [key, child] : map->entries()) {
    const auto* index = std::get_if<std::int64_t>(&key);
    if (index == nullptr || *index < 0 || *index >= std::ssize(items)) return root;
  }
  for (auto& [key, child] : map->entries()) {
    const auto index = static_cast<std::size_t>(std::get<std::int64_t>(key));
    items[index] = restore_lists(std::move(child), (*model)[index]);
    present[index] = true;
  }
  return compact(std::move(items), present);
}

TreeDifference diff(const StateNode& left, const StateNode& right) {
  TreeDifference result;
  TreeRules<StateNode, true>::compare(left, right, Trail(), result);
  return result;
}

KeySet keys_of(const StateNode& root) {
  KeySet keys;
  for_each_leaf(root, [&](const StateNode& leaf) {
    if (const auto* key = key_of(leaf)) keys.insert(*key);
  });
  return keys;
}

void add_prefix(StateNode& root, std::string_view prefix) {
  rename_keys(root, [&](const std::string& key) { return std::string(prefix) + key; });
}

Result<void> replace_prefix(StateNode& root, std::string_view prefix, std::string_view replacement) {
  for (const std::string& key : keys_of(root)) {
    if (key.starts_with(prefix)) continue;
    return fail(Errc::invalid_argument, "the key '{}' does not begin with '{}', which was to be replaced",
                key, prefix);
  }
  rename_keys(root,
              [&](const std::string& key) { return std::string(replacement) + key.substr(prefix.size()); });
  return {};
}

void map_prefixes(StateNode& root, std::span<const std::pair<std::string, std::string>> prefixes) {
  rename_keys(root, [&](const std::string& key) {
    for (const auto& [prefix, replacement] : prefixes) {
      if (key.starts_with(prefix)) return replacement + key.substr(prefix.size());
    }
    return key;
  });
}

Result<Value> to_value(const StateNode& root) {
  return value_at(root, Trail());
}

}  // namespace troupe::core
