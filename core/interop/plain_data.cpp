#include "core/interop/plain_data.hpp"

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "core/errors.hpp"
#include "core/interop/pickle_writer.hpp"
#include "core/interop/torch_archive.hpp"
#include "core/utf8.hpp"
#include "core/values/key_path.hpp"

namespace troupe::core {
namespace {

/// Approximate overhead of an allocation.
constexpr std::uint64_t kBlockCost = 16;

/// Size as JSON, where control characters take six bytes and others at most two.
std::uint64_t text_cost(std::string_view text) {
  std::uint64_t cost = kBlockCost;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    cost += byte < 0x20 ? 6 : c == '"' || c == '\\' ? 2 : 1;
  }
  return cost;
}

/// _codecs.encode(text, 'latin1'): how protocol 2 writes bytes.
bool is_latin(const PickleNode& node) {
  const auto arguments = node.arguments();
  return node.is_object_of("_codecs", "encode") && arguments->size() == 2 && arguments->item(0).as_text() &&
         arguments->item(1).as_text() == "latin1";
}

/// The result of such a call; empty if the text has a character that is not a byte.
std::optional<Value::Bytes> latin_bytes(const PickleNode& node) {
  const auto text = node.arguments()->item(0).as_text();
  Value::Bytes bytes;
  bytes.reserve(text->size());
  for (std::size_t i = 0; i < text->size(); ++i) {
    const auto first = static_cast<std::uint8_t>((*text)[i]);
    if (first < 0x80) {
      bytes.push_back(static_cast<std::byte>(first));
      continue;
    }
    // Two bytes suffice for a character up to U+00FF.
    if (first > 0xc3) return std::nullopt;
    bytes.push_back(static_cast<std::byte>((first << 6) | (static_cast<std::uint8_t>((*text)[++i]) & 0x3f)));
  }
  return bytes;
}

class Decoder {
 public:
  explicit Decoder(ValueBudget& budget) : budget_(budget) {}
  Result<Value> decode(const PickleNode& node, const Trail& at);

 private:
  Result<Value::List> decode_items(const PickleNode& node, const Trail& at);
  Result<Value> decode_map(const PickleNode& dict, const Trail& at);
  Result<Value> decode_object(const PickleNode& node, const Trail& at);
  Result<void> spend(std::uint64_t bytes, const Trail& at);

  ValueBudget& budget_;  ///< a list or dict pays for all its contents before memory is allocated
};

Result<void> Decoder::spend(std::uint64_t bytes, const Trail& at) {
  if (bytes > budget_.bytes) {
    budget_.bytes = 0;
    return fail(Errc::corrupt, "plain data: {} is beyond the memory that values of such files may take",
                to_string(at));
  }
  budget_.bytes -= bytes;
  return {};
}

Result<Value> Decoder::decode(const PickleNode& node, const Trail& at) {
  if (at.depth() > kMaxValueDepth) {
    return fail(Errc::corrupt, "plain data: more than {} levels", kMaxValueDepth);
  }
  switch (node.kind()) {
    case PickleKind::none:
      return Value{};
    case PickleKind::boolean:
      return Value(*node.as_boolean());
    case PickleKind::integer:
      return Value(*node.as_integer());
    case PickleKind::real:
      return Value(*node.as_real());
    case PickleKind::text:
      TRY(spend(text_cost(*node.as_text()), at));
      return Value(*node.as_text());
    case PickleKind::bytes: {
      const auto bytes = *node.as_bytes();
      TRY(spend(kBlockCost + 2 * bytes.size(), at));
      return Value(Value::Bytes(bytes.begin(), bytes.end()));
    }
    case PickleKind::list:
      return Value(TRY(decode_items(node, at)));
    case PickleKind::tuple:
      return Value::tuple(TRY(decode_items(node, at)));
    case PickleKind::dict:
      return decode_map(node, at);
    case PickleKind::object:
      return decode_object(node, at);
    default:
      return fail(Errc::unavailable, "plain data: {} at {} is not plain", class_name(node), to_string(at));
  }
}

Result<Value::List> Decoder::decode_items(const PickleNode& node, const Trail& at) {
  TRY(spend(kBlockCost + sizeof(Value) * node.size(), at));
  Value::List items;
  items.reserve(node.size());
  for (std::size_t i = 0; i < node.size(); ++i) {
    items.push_back(TRY(decode(node.item(i), Trail(at, static_cast<std::int64_t>(i)))));
  }
  return items;
}

Result<Value> Decoder::decode_map(const PickleNode& dict, const Trail& at) {
  // Includes the order used to find duplicate keys.
  TRY(spend(kBlockCost + (sizeof(Value::Entry) + sizeof(void*)) * dict.size(), at));
  std::vector<Value::Entry> entries;
  entries.reserve(dict.size());
  for (std::size_t i = 0; i < dict.size(); ++i) {
    const PickleNode node = dict.key(i);
    if (!node.as_text() && !node.as_integer()) {
      return fail(Errc::unavailable, "plain data: a key of the dict at {} is a {}, not a str or int",
                  to_string(at), class_name(node));
    }
    if (node.as_text()) TRY(spend(text_cost(*node.as_text()), at));
    Key key = node.as_text() ? Key(std::string(*node.as_text())) : Key(*node.as_integer());
    Value value = TRY(decode(dict.value(i), Trail(at, key)));
    entries.push_back({std::move(key), std::move(value)});
  }
  return Value(TRY(Value::Map::from_entries(std::move(entries))));
}

Result<Value> Decoder::decode_object(const PickleNode& node, const Trail& at) {
  if (is_latin(node)) {
    TRY(spend(kBlockCost + 2 * node.arguments()->item(0).as_text()->size(), at));
    if (auto bytes = latin_bytes(node)) return Value(std::move(*bytes));
  }
  const bool bare = !node.state() && !node.is_new();
  const PickleNode arguments = *node.arguments();
  if (bare && node.is_object_of("collections", "OrderedDict") && arguments.size() == 0) {
    const auto items = node.items();
    if (!items) return Value(Value::Map{});
    if (items->kind() == PickleKind::dict) return decode_map(*items, at);
  }
  if (bare && node.is_object_of("torch", "Size") && arguments.size() == 1 && !node.items() &&
      arguments.item(0).kind() == PickleKind::tuple) {
    return Value::tuple(TRY(decode_items(arguments.item(0), at)));
  }
  if (is_torch_tensor(node)) {
    return fail(Errc::unavailable, "plain data: a tensor at {}; save it as an entry of its own",
                to_string(at));
  }
  return fail(Errc::unavailable, "plain data: an object of {} at {} is not plain", class_name(node),
              to_string(at));
}

class Encoder {
 public:
  Result<void> encode(const Value& value, const Trail& at);
  std::vector<std::byte> finish() { return pickle_.finish(); }

 private:
  Result<void> encode_text(std::string_view text, const Trail& at);
  Result<void> encode_items(const Value::List& items, const Trail& at);
  Result<void> encode_map(const Value::Map& map, const Trail& at);

  PickleWriter pickle_{2};
};

Result<void> Encoder::encode(const Value& value, const Trail& at) {
  if (at.depth() > kMaxValueDepth) {
    return fail(Errc::invalid_argument, "plain data: more than {} levels at {}", kMaxValueDepth,
                to_string(at));
  }
  switch (value.kind()) {
    case Value::Kind::null:
      pickle_.none();
      return {};
    case Value::Kind::boolean:
      pickle_.boolean(*value.as_bool());
      return {};
    case Value::Kind::integer:
      pickle_.integer(*value.as_int());
      return {};
    case Value::Kind::real:
      pickle_.real(*value.as_double());
      return {};
    case Value::Kind::string:
      return encode_text(*value.as_string(), at);
    case Value::Kind::bytes:
      pickle_.bytes(*value.as_bytes());
      return {};
    case Value::Kind::list:
      pickle_.empty_list();
      pickle_.mark();
      TRY(encode_items(*value.as_list(), at));
      pickle_.append_all();
      return {};
    case Value::Kind::tuple: {
      const Value::List& items = *value.as_tuple();
      if (items.size() > 3) pickle_.mark();
      TRY(encode_items(items, at));
      pickle_.tuple(items.size());
      return {};
    }
    case Value::Kind::map:
      return encode_map(*value.as_map(), at);
  }
  return {};
}

Result<void> Encoder::encode_text(std::string_view text, const Trail& at) {
  if (!is_utf8(text)) {
    return fail(Errc::invalid_argument, "plain data: the string at {} is not UTF-8; store it as bytes",
                to_string(at));
  }
  pickle_.text(text);
  return {};
}

Result<void> Encoder::encode_items(const Value::List& items, const Trail& at) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    TRY(encode(items[i], Trail(at, static_cast<std::int64_t>(i))));
  }
  return {};
}

Result<void> Encoder::encode_map(const Value::Map& map, const Trail& at) {
  pickle_.empty_dict();
  pickle_.mark();
  for (const auto& [key, value] : map.entries()) {
    const Trail here(at, key);
    if (const auto* text = std::get_if<std::string>(&key)) {
      TRY(encode_text(*text, here));
    } else {
      pickle_.integer(std::get<std::int64_t>(key));
    }
    TRY(encode(value, here));
  }
  pickle_.set_all();
  return {};
}

}  // namespace

Result<Value> value_from_pickle(const PickleNode& node, ValueBudget& budget) {
  return Decoder(budget).decode(node, Trail{});
}

Result<Value> parse_torch_value(std::span<const std::byte> archive, ValueBudget& budget) {
  const TorchArchive opened = TRY(TorchArchive::open(archive));
  return value_from_pickle(opened.object.root(), budget);
}

Result<Value> parse_torch_value(std::span<const std::byte> archive) {
  ValueBudget budget;
  return parse_torch_value(archive, budget);
}

Result<std::vector<std::byte>> encode_torch_value(const Value& value) {
  Encoder encoder;
  TRY(encoder.encode(value, Trail{}));
  return torch_archive(encoder.finish());
}

}  // namespace troupe::core
