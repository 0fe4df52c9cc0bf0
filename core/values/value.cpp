#include "core/values/value.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::core {
namespace {

using Entries = std::vector<Value::Entry>;

template <class List>
auto* find_entry(List& entries, const Key& key) {
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.key == key; });
  return found == entries.end() ? nullptr : &*found;
}

/// The entries in the order of their keys.
std::vector<const Value::Entry*> sorted(const Entries& entries) {
  std::vector<const Value::Entry*> result;
  result.reserve(entries.size());
  for (const auto& entry : entries) result.push_back(&entry);
  std::sort(result.begin(), result.end(), [](const auto* a, const auto* b) { return a->key < b->key; });
  return result;
}

bool same_entries(const Entries& a, const Entries& b) {
  if (a.size() != b.size()) return false;
  const auto left = sorted(a);
  const auto right = sorted(b);
  return std::equal(left.begin(), left.end(), right.begin(),
                    [](const auto* x, const auto* y) { return x->key == y->key && x->value == y->value; });
}

Result<std::int64_t> index_from(std::string_view text) {
  return parse_number<std::int64_t>(
      text, {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()});
}

const Value* child(const Value& value, std::string_view name) {
  if (const auto* map = value.as_map()) {
    if (const Value* found = map->find(Key(std::string(name)))) return found;
    const auto index = index_from(name);
    return index ? map->find(Key(*index)) : nullptr;
  }
  const auto* items = value.as_list() != nullptr ? value.as_list() : value.as_tuple();
  const auto index = index_from(name);
  if (items == nullptr || !index || *index < 0 || *index >= std::ssize(*items)) return nullptr;
  return &(*items)[static_cast<std::size_t>(*index)];
}

}  // namespace

Value::Map::Map() = default;
Value::Map::Map(const Map&) = default;
Value::Map::Map(Map&&) noexcept = default;
Value::Map& Value::Map::operator=(const Map&) = default;
Value::Map& Value::Map::operator=(Map&&) noexcept = default;
Value::Map::~Map() = default;

Value::Map::Map(std::initializer_list<Entry> entries) {
  for (const Entry& entry : entries) set(entry.key, entry.value);
}

Result<Value::Map> Value::Map::from_entries(std::vector<Entry> entries) {
  const auto in_order = sorted(entries);
  const auto twice = std::adjacent_find(in_order.begin(), in_order.end(),
                                        [](const auto* a, const auto* b) { return a->key == b->key; });
  if (twice != in_order.end()) {
    return fail(Errc::invalid_argument, "a map has the key {} twice; keys are unique",
                to_string((*twice)->key));
  }
  Map map;
  map.entries_ = std::move(entries);
  return map;
}

Value::Map& Value::Map::set(Key key, Value value) {
  if (Entry* entry = find_entry(entries_, key)) {
    entry->value = std::move(value);
  } else {
    entries_.push_back({std::move(key), std::move(value)});
  }
  return *this;
}

bool Value::Map::erase(const Key& key) {
  return std::erase_if(entries_, [&](const Entry& entry) { return entry.key == key; }) > 0;
}

const Value* Value::Map::find(const Key& key) const {
  const auto* entry = find_entry(entries_, key);
  return entry != nullptr ? &entry->value : nullptr;
}

Value* Value::Map::find(const Key& key) {
  auto* entry = find_entry(entries_, key);
  return entry != nullptr ? &entry->value : nullptr;
}

std::size_t Value::Map::size() const {
  return entries_.size();
}

bool Value::Map::empty() const {
  return entries_.empty();
}

std::optional<bool> Value::as_bool() const {
  const auto* value = std::get_if<bool>(&data_);
  return value != nullptr ? std::optional(*value) : std::nullopt;
}

std::optional<std::int64_t> Value::as_int() const {
  const auto* value = std::get_if<std::int64_t>(&data_);
  return value != nullptr ? std::optional(*value) : std::nullopt;
}

std::optional<double> Value::as_double() const {
  const auto* value = std::get_if<double>(&data_);
  return value != nullptr ? std::optional(*value) : std::nullopt;
}

const Value::List* Value::as_tuple() const {
  const auto* tuple = std::get_if<Tuple>(&data_);
  return tuple != nullptr ? &tuple->items : nullptr;
}

const Value* Value::find(std::string_view path) const {
  if (path.empty()) return this;
  const std::size_t dot = path.find('.');
  const Value* at = child(*this, path.substr(0, dot));
  if (dot == std::string_view::npos || at == nullptr) return at;
  const std::string_view rest = path.substr(dot + 1);
  return rest.empty() ? nullptr : at->find(rest);
}

bool operator==(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::Kind::real:
      return std::bit_cast<std::uint64_t>(*a.as_double()) == std::bit_cast<std::uint64_t>(*b.as_double());
    case Value::Kind::list:
      return *a.as_list() == *b.as_list();
    case Value::Kind::tuple:
      return *a.as_tuple() == *b.as_tuple();
    case Value::Kind::map:
      return same_entries(a.as_map()->entries(), b.as_map()->entries());
    case Value::Kind::null:
      return true;
    case Value::Kind::boolean:
      return a.as_bool() == b.as_bool();
    case Value::Kind::integer:
      return a.as_int() == b.as_int();
    case Value::Kind::string:
      return *a.as_string() == *b.as_string();
    case Value::Kind::bytes:
      return *a.as_bytes() == *b.as_bytes();
  }
  return false;
}

std::string_view Value::type_name() const noexcept {
  constexpr std::array<std::string_view, 9> kNames{"null",  "bool", "int",   "double", "string",
                                                   "bytes", "list", "tuple", "map"};
  return kNames.at(data_.index());
}

}  // namespace troupe::core
