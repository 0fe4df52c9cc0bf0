#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/boxes/sharded_tensor.hpp"
#include "core/result.hpp"
#include "core/state/strictness.hpp"
#include "core/values/key_path.hpp"
#include "core/values/tree.hpp"
#include "core/values/value.hpp"

namespace troupe::core {

/// Where the bytes of a local tensor are: a number with a meaning to its owner, and the position of the
/// tensor in that memory. Without a buffer the loader provides the memory.
struct LocalData {
  std::int64_t buffer = -1;
  std::int64_t begin_bytes = 0;

  bool is_none() const { return buffer < 0; }
  friend bool operator==(const LocalData&, const LocalData&) = default;
};

struct TensorLeaf {
  ShardedTensor tensor;
  LocalData data;

  friend bool operator==(const TensorLeaf&, const TensorLeaf&) = default;
};

struct ObjectLeaf {
  ShardedObject object;
  Value value;

  friend bool operator==(const ObjectLeaf&, const ObjectLeaf&) = default;
};

/// A value that stays as it is on this rank: never saved, and restored to its place after a load.
struct LocalLeaf {
  Value value;

  friend bool operator==(const LocalLeaf&, const LocalLeaf&) = default;
};

struct TensorFactory;

/// A node of a nested state: a map, a list, or one of five leaves (tensor, object, factory, local value,
/// plain value). A plain value is never a map or a list; those become nodes.
class StateNode {
 public:
  using List = std::vector<StateNode>;
  struct Entry;
  /// Entries in the order in which they were set. Their keys are unique.
  class Map {
   public:
    // Out of line, because an Entry holds a StateNode, which is not complete here.
    Map();
    Map(const Map&);
    Map(Map&&) noexcept;
    Map& operator=(const Map&);
    Map& operator=(Map&&) noexcept;
    ~Map();
    /// If a key is repeated, the last one wins.
    Map(std::initializer_list<Entry> entries);

    /// Replaces the node of an existing key.
    Map& set(Key key, StateNode node);
    const StateNode* find(const Key& key) const;
    StateNode* find(const Key& key);
    const std::vector<Entry>& entries() const { return entries_; }
    std::vector<Entry>& entries() { return entries_; }

   private:
    template <class, bool>
    friend class TreeRules;
    std::vector<Entry> entries_;
  };

  StateNode() = default;
  StateNode(Value value);
  StateNode(Map map) : data_(std::move(map)) {}
  StateNode(List items) : data_(std::move(items)) {}
  StateNode(TensorLeaf tensor) : data_(std::move(tensor)) {}
  StateNode(ObjectLeaf object) : data_(std::move(object)) {}
  StateNode(LocalLeaf local) : data_(std::move(local)) {}
  StateNode(TensorFactory factory);

  const Map* as_map() const { return std::get_if<Map>(&data_); }
  Map* as_map() { return std::get_if<Map>(&data_); }
  const List* as_list() const { return std::get_if<List>(&data_); }
  List* as_list() { return std::get_if<List>(&data_); }
  const TensorLeaf* as_tensor() const { return std::get_if<TensorLeaf>(&data_); }
  TensorLeaf* as_tensor() { return std::get_if<TensorLeaf>(&data_); }
  const ObjectLeaf* as_object() const { return std::get_if<ObjectLeaf>(&data_); }
  ObjectLeaf* as_object() { return std::get_if<ObjectLeaf>(&data_); }
  const LocalLeaf* as_local() const { return std::get_if<LocalLeaf>(&data_); }
  const TensorFactory* as_factory() const;
  const Value* as_value() const { return std::get_if<Value>(&data_); }
  bool is_leaf() const { return as_map() == nullptr && as_list() == nullptr; }
  /// A map or list without entries.
  bool is_empty() const;
  /// "map", "list", "tensor", "object", "local value", "factory", or the type of a plain value.
  std::string_view type_name() const noexcept;

  /// Maps are equal regardless of order, factories if they were made from equal sources.
  friend bool operator==(const StateNode& a, const StateNode& b);

 private:
  // Copies of a node share their factory, which is immutable.
  std::variant<Value, Map, List, TensorLeaf, ObjectLeaf, LocalLeaf, std::shared_ptr<const TensorFactory>>
      data_;
};

struct StateNode::Entry {
  Key key;
  StateNode value;
};

/// Represents a tensor that is stored in another form: as several tensors, or cut along other axes. Both
/// functions depend only on their arguments, so that an optimizer can give the factory another key, dtype and
/// data and gets its state cut in the same way.
struct TensorFactory {
  TensorLeaf source;
  /// Returns what is stored instead of the source.
  std::function<Result<StateNode>(const TensorLeaf& source)> build;
  /// The inverse, from what was built and then loaded.
  std::function<Result<StateNode>(const TensorLeaf& source, const StateNode& loaded)> merge;
};

/// Calls `visit` for every leaf, in order.
void for_each_leaf(const StateNode& root, const std::function<void(const StateNode&)>& visit);
void for_each_leaf(StateNode& root, const std::function<void(StateNode&)>& visit);

struct Extraction {
  StateNode matching;
  StateNode rest;
};

/// Splits by leaves. A list whose items all go to one side stays a list there; otherwise its items become a
/// map by index (see restore_lists). Empty maps and lists go to the rest. The root should be a map or a list.
Extraction extract(const StateNode& root, const std::function<bool(const StateNode&)>& predicate);

/// Adds `from` to `into` like merge of Values; a map by index is part of a list.
Result<void> merge(StateNode& into, StateNode from);
/// Converts maps by index back to lists where `like` has a list: those with all indices, and empty ones. Maps
/// that lack some indices stay.
StateNode restore_lists(StateNode root, const StateNode& like);

TreeDifference diff(const StateNode& left, const StateNode& right);

/// The keys of all tensors, objects and factories.
KeySet keys_of(const StateNode& root);
void add_prefix(StateNode& root, std::string_view prefix);
/// Errc::invalid_argument names a key without the prefix; then no key is changed.
Result<void> replace_prefix(StateNode& root, std::string_view prefix, std::string_view replacement);
/// Applies, of the pairs (prefix, replacement), the first whose prefix a key has; other keys stay.
void map_prefixes(StateNode& root, std::span<const std::pair<std::string, std::string>> prefixes);

/// A tree that consists of values only. Errc::invalid_argument names the place of any other leaf.
Result<Value> to_value(const StateNode& root);

}  // namespace troupe::core
