#include <fmt/format.h>

#include <array>
#include <bit>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/values/value.hpp"

namespace troupe::core {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string to_base64(const Value::Bytes& bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      group = (group << 8) | (j < count ? std::to_integer<std::uint32_t>(bytes[i + j]) : 0);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += j <= count ? kDigits[(group >> (18 - 6 * j)) & 0x3f] : '=';
    }
  }
  return text;
}

/// Nothing unless the text is what to_base64 writes.
std::optional<Value::Bytes> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::array<std::uint8_t, 256> values{};
  values.fill(0xff);
  for (std::size_t i = 0; i < kDigits.size(); ++i) {
    values[static_cast<unsigned char>(kDigits[i])] = static_cast<std::uint8_t>(i);
  }
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  Value::Bytes bytes;
  bytes.reserve(text.size() / 4 * 3);
  std::uint32_t group = 0;
  for (std::size_t i = 0; i < text.size() - padding; ++i) {
    const std::uint8_t digit = values[static_cast<unsigned char>(text[i])];
    if (digit == 0xff) return std::nullopt;
    group = (group << 6) | digit;
    // After 2, 3 and 4 digits of a group its 1st, 2nd and 3rd byte is complete.
    const std::size_t seen = i % 4;
    if (seen > 0) bytes.push_back(static_cast<std::byte>((group >> (6 - 2 * seen)) & 0xff));
  }
  const std::uint32_t unused = padding == 2 ? 0xf : padding == 1 ? 0x3 : 0;
  if ((group & unused) != 0) return std::nullopt;
  return bytes;
}

/// The length of the character that `text` begins with, 0 when it is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool beyond = (first == 0xed && byte(1) > 0x9f) || (first == 0xf4 && byte(1) > 0x8f);
  return overlong || beyond ? 0 : length;
}

Result<void> check_utf8(std::string_view text, const Trail& at) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text.substr(i));
    if (length == 0) {
      return fail(Errc::invalid_argument,
                  "the string at {} is not UTF-8 from byte {} on; store it as bytes instead", to_string(at),
                  i);
    }
    i += length;
  }
  return {};
}

Json tagged(const char* tag, Json content) {
  Json result = Json::object();
  result[tag] = std::move(content);
  return result;
}

bool is_plain(const Value::Map& map) {
  for (const auto& entry : map.entries()) {
    const auto* name = std::get_if<std::string>(&entry.key);
    if (name == nullptr || name->starts_with('$')) return false;
  }
  return true;
}

Result<Json> write(const Value& value, const Trail& at);

Result<Json> write_list(const Value::List& items, const Trail& at) {
  Json result = Json::array();
  for (std::size_t i = 0; i < items.size(); ++i) {
    result.push_back(TRY(write(items[i], Trail(at, static_cast<std::int64_t>(i)))));
  }
  return result;
}

Result<Json> write_map(const Value::Map& map, const Trail& at) {
  const bool plain = is_plain(map);
  Json result = plain ? Json::object() : Json::array();
  for (const auto& [key, value] : map.entries()) {
    const Trail here(at, key);
    const auto* name = std::get_if<std::string>(&key);
    if (name != nullptr) TRY(check_utf8(*name, here));
    Json content = TRY(write(value, here));
    if (plain) {
      result[*name] = std::move(content);
    } else {
      Json pair = Json::array();
      pair.push_back(name != nullptr ? Json(*name) : Json(std::get<std::int64_t>(key)));
      pair.push_back(std::move(content));
      result.push_back(std::move(pair));
    }
  }
  return plain ? std::move(result) : tagged("$map", std::move(result));
}

Result<Json> write(const Value& value, const Trail& at) {
  if (at.depth() > kMaxValueDepth) {
    return fail(Errc::invalid_argument, "a value has more than {} levels: {}; flatten it", kMaxValueDepth,
                to_string(at));
  }
  switch (value.kind()) {
    case Value::Kind::null:
      return Json(nullptr);
    case Value::Kind::boolean:
      return Json(*value.as_bool());
    case Value::Kind::integer:
      return Json(*value.as_int());
    case Value::Kind::real:
      return tagged("$double", fmt::format("{:016x}", std::bit_cast<std::uint64_t>(*value.as_double())));
    case Value::Kind::string:
      TRY(check_utf8(*value.as_string(), at));
      return Json(*value.as_string());
    case Value::Kind::bytes:
      return tagged("$bytes", to_base64(*value.as_bytes()));
    case Value::Kind::list:
      return write_list(*value.as_list(), at);
    case Value::Kind::tuple:
      return tagged("$tuple", TRY(write_list(*value.as_tuple(), at)));
    case Value::Kind::map:
      return write_map(*value.as_map(), at);
  }
  return fail(Errc::internal, "a value of no known kind at {}", to_string(at));
}

template <class... Args>
tl::unexpected<Error> corrupt(const Trail& at, fmt::format_string<Args...> format, Args&&... args) {
  return fail(Errc::corrupt, "the stored value at {} is damaged or from a newer version: {}", to_string(at),
              fmt::format(format, std::forward<Args>(args)...));
}

Result<Value> read(const Json& json, const Trail& at);

Result<Value::List> read_list(const Json& json, const Trail& at) {
  if (!json.is_array()) return corrupt(at, "expected a list, found {}", json.type_name());
  Value::List items;
  items.reserve(json.size());
  for (const Json& item : json) {
    items.push_back(TRY(read(item, Trail(at, static_cast<std::int64_t>(items.size())))));
  }
  return items;
}

Result<std::int64_t> read_integer(const Json& json, const Trail& at) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > kMax) {
    return corrupt(at, "{} does not fit into 64 bits with a sign", json.get<std::uint64_t>());
  }
  return json.get<std::int64_t>();
}

Result<Value> read_double(const Json& json, const Trail& at) {
  const auto* text = json.get_ptr<const std::string*>();
  std::uint64_t bits = 0;
  if (text == nullptr || text->size() != 16) return corrupt(at, "\"$double\" takes 16 hex digits");
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), bits, 16);
  if (error != std::errc{} || end != text->data() + text->size()) {
    return corrupt(at, "\"$double\" takes 16 hex digits, found \"{}\"", *text);
  }
  return Value(std::bit_cast<double>(bits));
}

Result<Value> read_bytes(const Json& json, const Trail& at) {
  const auto* text = json.get_ptr<const std::string*>();
  auto bytes = text != nullptr ? from_base64(*text) : std::nullopt;
  if (!bytes) return corrupt(at, "\"$bytes\" takes base64 with padding");
  return Value(*std::move(bytes));
}

Result<Value> read_pairs(const Json& json, const Trail& at) {
  if (!json.is_array()) return corrupt(at, "\"$map\" takes a list of pairs, found {}", json.type_name());
  std::vector<Value::Entry> entries;
  entries.reserve(json.size());
  for (const Json& pair : json) {
    if (!pair.is_array() || pair.size() != 2) return corrupt(at, "\"$map\" takes pairs of key and value");
    Key key;
    if (const auto* name = pair[0].get_ptr<const std::string*>()) {
      key = *name;
    } else if (pair[0].is_number_integer()) {
      key = TRY(read_integer(pair[0], at));
    } else {
      return corrupt(at, "a key is a string or an integer, found {}", pair[0].type_name());
    }
    Value value = TRY(read(pair[1], Trail(at, key)));
    entries.push_back({std::move(key), std::move(value)});
  }
  auto map = Value::Map::from_entries(std::move(entries));
  if (!map) return corrupt(at, "{}", map.error().message);
  return Value(*std::move(map));
}

Result<Value> read_tagged(const std::string& tag, const Json& content, const Trail& at) {
  if (tag == "$tuple") return Value::tuple(TRY(read_list(content, at)));
  if (tag == "$map") return read_pairs(content, at);
  if (tag == "$bytes") return read_bytes(content, at);
  if (tag == "$double") return read_double(content, at);
  return corrupt(at, "unknown tag \"{}\"", tag);
}

Result<Value> read_object(const Json& json, const Trail& at) {
  std::vector<Value::Entry> entries;
  entries.reserve(json.size());
  for (const auto& [name, content] : json.items()) {
    if (name.starts_with('$')) {
      if (json.size() == 1) return read_tagged(name, content, at);
      return corrupt(at, "the tag \"{}\" stands next to {} other names", name, json.size() - 1);
    }
    Key key(name);
    Value value = TRY(read(content, Trail(at, key)));
    entries.push_back({std::move(key), std::move(value)});
  }
  return Value(TRY(Value::Map::from_entries(std::move(entries))));
}

Result<Value> read(const Json& json, const Trail& at) {
  if (at.depth() > kMaxValueDepth) return corrupt(at, "it has more than {} levels", kMaxValueDepth);
  switch (json.type()) {
    case Json::value_t::null:
      return Value();
    case Json::value_t::boolean:
      return Value(json.get<bool>());
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return Value(TRY(read_integer(json, at)));
    case Json::value_t::string:
      return Value(json.get_ref<const std::string&>());
    case Json::value_t::array:
      return Value(TRY(read_list(json, at)));
    case Json::value_t::object:
      return read_object(json, at);
    case Json::value_t::number_float:
      return corrupt(at, "found the number {}, expected {{\"$double\": ...}}", json.get<double>());
    default:
      return corrupt(at, "{} is no JSON type", json.type_name());
  }
}

}  // namespace

Result<Json> to_json(const Value& value) {
  return write(value, Trail());
}

Result<Value> value_from_json(const Json& json) {
  return read(json, Trail());
}

}  // namespace troupe::core
