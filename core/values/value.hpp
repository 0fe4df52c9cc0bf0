#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/result.hpp"

namespace troupe::core {

/// Names an entry of a map or, as an integer, an item of a list.
using Key = std::variant<std::int64_t, std::string>;
/// "'name'" or "7".
std::string to_string(const Key& key);

struct TreeDifference;

/// A value of the common state of a checkpoint: anything that is neither a tensor nor opaque. Types survive
/// storage: a tuple stays a tuple, 1 differs from 1.0 and from true, and every bit of a double is kept.
class Value {
 public:
  enum class Kind : std::uint8_t { null, boolean, integer, real, string, bytes, list, tuple, map };

  using Bytes = std::vector<std::byte>;
  using List = std::vector<Value>;
  struct Tuple {
    List items;
  };
  struct Entry;
  /// Entries in the order in which they were set. Their keys are unique.
  class Map {
   public:
    // Out of line, because an Entry holds a Value, which is not complete here.
    Map();
    Map(const Map&);
    Map(Map&&) noexcept;
    Map& operator=(const Map&);
    Map& operator=(Map&&) noexcept;
    ~Map();
    /// `Value::Map{{"step", 3}, {"names", Value::List{"a", "b"}}, {7, nullptr}}`. The last of equal keys
    /// wins.
    Map(std::initializer_list<Entry> entries);
    /// Errc::invalid_argument names a key that occurs twice.
    static Result<Map> from_entries(std::vector<Entry> entries);

    /// Replaces the value of an existing key.
    Map& set(Key key, Value value);
    /// Returns whether the key existed.
    bool erase(const Key& key);
    /// Takes time proportional to the size. Null when the key does not exist.
    const Value* find(const Key& key) const;
    Value* find(const Key& key);
    const std::vector<Entry>& entries() const { return entries_; }
    std::size_t size() const;
    bool empty() const;

   private:
    friend class Value;
    std::vector<Entry> entries_;
  };

  Value() = default;
  Value(std::nullptr_t) {}
  template <std::same_as<bool> T>
  Value(T value) : data_(std::in_place_type<bool>, value) {}
  /// Integers that always fit; std::uint64_t does not.
  template <std::integral T>
  requires(!std::same_as<T, bool> && (std::signed_integral<T> || sizeof(T) < sizeof(std::int64_t)))
      Value(T value)
      : data_(std::in_place_type<std::int64_t>, value) {}
  Value(double value) : data_(std::in_place_type<double>, value) {}
  /// Strings are UTF-8; others cannot be stored.
  Value(const char* text) : data_(std::in_place_type<std::string>, text) {}
  Value(std::string_view text) : data_(std::in_place_type<std::string>, text) {}
  Value(std::string text) : data_(std::in_place_type<std::string>, std::move(text)) {}
  Value(Bytes bytes) : data_(std::in_place_type<Bytes>, std::move(bytes)) {}
  Value(List items) : data_(std::in_place_type<List>, std::move(items)) {}
  Value(Tuple tuple) : data_(std::in_place_type<Tuple>, std::move(tuple)) {}
  Value(Map map) : data_(std::in_place_type<Map>, std::move(map)) {}
  static Value tuple(List items) { return Tuple{std::move(items)}; }

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is_null() const { return kind() == Kind::null; }
  /// "null", "bool", "int", "double", "string", "bytes", "list", "tuple", "map".
  std::string_view type_name() const noexcept;

  /// Nothing, or null, when the value has another kind: an integer is not a double.
  std::optional<bool> as_bool() const;
  std::optional<std::int64_t> as_int() const;
  std::optional<double> as_double() const;
  const std::string* as_string() const { return std::get_if<std::string>(&data_); }
  const Bytes* as_bytes() const { return std::get_if<Bytes>(&data_); }
  const List* as_list() const { return std::get_if<List>(&data_); }
  List* as_list() { return std::get_if<List>(&data_); }
  /// The items of a tuple.
  const List* as_tuple() const;
  const Map* as_map() const { return std::get_if<Map>(&data_); }
  Map* as_map() { return std::get_if<Map>(&data_); }

  /// Follows "optimizer.groups.0.lr" through maps, lists and tuples; a number is an index or an integer key.
  /// Null when there is nothing. A key that contains a dot cannot be reached this way.
  const Value* find(std::string_view path) const;

  /// Doubles are equal when their bits are, maps whatever the order of their entries.
  friend bool operator==(const Value& a, const Value& b);

 private:
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Bytes, List, Tuple, Map> data_;
};

struct Value::Entry {
  Key key;
  Value value;
};

/// Nesting of lists, tuples and maps that can be stored.
inline constexpr int kMaxValueDepth = 64;

/// See core/values/tree.hpp. Paths come in the order of the left value, those that are only on the right in
/// the order of the right one.
TreeDifference diff(const Value& left, const Value& right);

}  // namespace troupe::core
