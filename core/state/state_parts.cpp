#include "core/state/state_parts.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.hpp"
#include "core/values/key_path.hpp"

namespace troupe::core {
namespace {

/// A factory that builds itself must not run for ever.
constexpr int kMaxBuilds = 8;

bool is_sharded(const StateNode& leaf) {
  return leaf.as_tensor() != nullptr || leaf.as_object() != nullptr;
}

Result<void> build_in_place(StateNode& node, int builds) {
  if (const auto* factory = node.as_factory()) {
    if (builds == kMaxBuilds) {
      return fail(Errc::invalid_argument, "the factory of '{}' builds factories more than {} levels deep",
                  factory->source.tensor.key, kMaxBuilds);
    }
    StateNode built = TRY(factory->build(factory->source));
    node = std::move(built);
    return build_in_place(node, builds + 1);
  }
  if (auto* map = node.as_map()) {
    for (auto& entry : map->entries()) TRY(build_in_place(entry.value, builds));
  } else if (auto* list = node.as_list()) {
    for (StateNode& item : *list) TRY(build_in_place(item, builds));
  }
  return {};
}

tl::unexpected<Error> not_loaded(const Trail& at, std::string_view found) {
  return fail(Errc::mismatch, "the parts of a factory at {} were not loaded: {}", to_string(at), found);
}

Result<void> merge_in_place(StateNode& loaded, const StateNode& factories, const Trail& at);

Result<void> merge_items(StateNode::List& items, const StateNode& factories, const Trail& at) {
  if (const auto* list = factories.as_list()) {
    if (list->size() != items.size()) {
      return not_loaded(at, fmt::format("a list of {} items, expected {}", items.size(), list->size()));
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
      TRY(merge_in_place(items[i], (*list)[i], Trail(at, static_cast<std::int64_t>(i))));
    }
    return {};
  }
  for (const auto& [key, factory] : factories.as_map()->entries()) {
    const auto* index = std::get_if<std::int64_t>(&key);
    if (index == nullptr || *index < 0 || *index >= std::ssize(items)) {
      return not_loaded(at, fmt::format("a list of {} items has no item {}", items.size(), to_string(key)));
    }
    TRY(merge_in_place(items[static_cast<std::size_t>(*index)], factory, Trail(at, key)));
  }
  return {};
}

Result<void> merge_entries(StateNode::Map& map, const StateNode& factories, const Trail& at) {
  const auto merge_one = [&](const Key& key, const StateNode& factory) -> Result<void> {
    StateNode* child = map.find(key);
    if (child == nullptr) return not_loaded(at, fmt::format("there is no entry {}", to_string(key)));
    return merge_in_place(*child, factory, Trail(at, key));
  };
  if (const auto* list = factories.as_list()) {
    for (std::size_t i = 0; i < list->size(); ++i) TRY(merge_one(static_cast<std::int64_t>(i), (*list)[i]));
    return {};
  }
  for (const auto& [key, factory] : factories.as_map()->entries()) TRY(merge_one(key, factory));
  return {};
}

Result<void> merge_in_place(StateNode& loaded, const StateNode& factories, const Trail& at) {
  if (const auto* factory = factories.as_factory()) {
    StateNode merged = TRY(factory->merge(factory->source, loaded));
    loaded = std::move(merged);
    return {};
  }
  if (auto* list = loaded.as_list()) return merge_items(*list, factories, at);
  if (auto* map = loaded.as_map()) return merge_entries(*map, factories, at);
  return not_loaded(at, fmt::format("found a {}", loaded.type_name()));
}

bool has_any(const StateNode& node, const KeySet& keys) {
  const KeySet own = keys_of(node);
  return std::any_of(own.begin(), own.end(), [&](const std::string& key) { return keys.contains(key); });
}

/// Whether to remove the nodes at this place: a leaf with one of the keys, or a factory that has such a part.
/// `factories` is null where there are none below.
bool drop_below(StateNode& node, StateNode* factories, const KeySet& keys);

StateNode* child_of(StateNode* node, const Key& key) {
  if (node == nullptr) return nullptr;
  if (auto* map = node->as_map()) return map->find(key);
  const auto* index = std::get_if<std::int64_t>(&key);
  auto* list = node->as_list();
  if (list == nullptr || index == nullptr || *index >= std::ssize(*list)) return nullptr;
  return &(*list)[static_cast<std::size_t>(*index)];
}

/// Lists that lose an item become maps by index, so that the other items keep their places.
void list_to_map(StateNode* node) {
  if (node == nullptr || node->as_list() == nullptr) return;
  StateNode::Map map;
  std::int64_t index = 0;
  for (StateNode& item : *node->as_list()) map.entries().push_back({Key(index++), std::move(item)});
  *node = std::move(map);
}

void drop_entries(StateNode& node, StateNode* factories, const KeySet& keys) {
  StateNode::Map kept;
  for (auto& entry : node.as_map()->entries()) {
    if (!drop_below(entry.value, child_of(factories, entry.key), keys)) {
      kept.entries().push_back(std::move(entry));
    } else if (factories != nullptr) {
      list_to_map(factories);
      if (auto* map = factories->as_map()) {
        std::erase_if(map->entries(), [&](const auto& factory) { return factory.key == entry.key; });
      }
    }
  }
  node = std::move(kept);
}

bool drop_below(StateNode& node, StateNode* factories, const KeySet& keys) {
  if (factories != nullptr && factories->as_factory() != nullptr) return has_any(node, keys);
  if (node.is_leaf()) return has_any(node, keys);
  if (!has_any(node, keys)) return false;
  list_to_map(&node);
  drop_entries(node, factories, keys);
  return false;
}

}  // namespace

Result<StateNode> apply_factories(StateNode root) {
  TRY(build_in_place(root, 0));
  return root;
}

Result<StateNode> merge_factories(StateNode loaded, const StateNode& factories) {
  if (factories.is_empty()) return loaded;
  TRY(merge_in_place(loaded, factories, Trail()));
  return loaded;
}

Result<SaveParts> split_for_save(const StateNode& state) {
  const StateNode built = TRY(apply_factories(state));
  const StateNode kept =
      extract(built, [](const StateNode& leaf) { return leaf.as_local() != nullptr; }).rest;
  Extraction parts = extract(kept, is_sharded);
  Value common = TRY(to_value(parts.rest));
  return SaveParts{std::move(parts.matching), std::move(common)};
}

Result<LoadParts> split_for_load(const StateNode& state) {
  LoadParts parts{
      .sharded = {},
      .local = extract(state, [](const auto& leaf) { return leaf.as_local() != nullptr; }).matching,
      .factories = extract(state, [](const auto& leaf) { return leaf.as_factory() != nullptr; }).matching,
      .structure = state};
  for_each_leaf(parts.local, [](StateNode& leaf) {
    Value value = leaf.as_local()->value;
    leaf = StateNode(std::move(value));
  });
  parts.sharded = extract(TRY(apply_factories(state)), is_sharded).matching;
  return parts;
}

void drop_keys(LoadParts& parts, const KeySet& keys) {
  if (!keys.empty()) drop_below(parts.sharded, &parts.factories, keys);
}

Result<StateNode> join_after_load(const Value& common, StateNode loaded, const LoadParts& parts) {
  StateNode joined = common.is_null() ? StateNode(StateNode::Map{}) : StateNode(common);
  TRY(merge(joined, parts.local));
  TRY(merge(joined, std::move(loaded)));
  // Built lists and the state's lists are both in place before a factory looks for its parts.
  joined = TRY(merge_factories(std::move(joined), parts.factories));
  return restore_lists(std::move(joined), parts.structure);
}

}  // namespace troupe::core
