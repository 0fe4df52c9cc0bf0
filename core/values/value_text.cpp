#include "core/values/value_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/errors.hpp"
#include "core/values/json_text.hpp"
#include "core/values/key_path.hpp"
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

/// Empty unless the text is what to_base64 writes.
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

/// From 16 hexadecimal digits.
std::optional<double> real_from(std::string_view digits) {
  std::uint64_t bits = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits, 16);
  if (digits.size() != 16 || error != std::errc{} || end != digits.data() + digits.size())
    return std::nullopt;
  return std::bit_cast<double>(bits);
}

/// The length of the character at the beginning of `text`, 0 if there is none.
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

bool is_plain(const Value::Map& map) {
  for (const auto& entry : map.entries()) {
    const auto* name = std::get_if<std::string>(&entry.key);
    if (name == nullptr || name->starts_with('$')) return false;
  }
  return true;
}

/// Appends to the text written so far, without building a tree.
Result<void> write(const Value& value, const Trail& at, std::string& json);

Result<void> write_list(const Value::List& items, const Trail& at, std::string& json) {
  json += '[';
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) json += ',';
    TRY(write(items[i], Trail(at, static_cast<std::int64_t>(i)), json));
  }
  json += ']';
  return {};
}

Result<void> write_name(const std::string& name, const Trail& at, std::string& json) {
  TRY(check_utf8(name, at));
  append_string(json, name);
  return {};
}

/// In name order.
Result<void> write_plain_map(const Value::Map& map, const Trail& at, std::string& json) {
  std::vector<const Value::Entry*> entries;
  entries.reserve(map.size());
  for (const auto& entry : map.entries()) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) { return a->key < b->key; });
  json += '{';
  for (const auto* entry : entries) {
    const Trail here(at, entry->key);
    if (entry != entries.front()) json += ',';
    TRY(write_name(std::get<std::string>(entry->key), here, json));
    json += ':';
    TRY(write(entry->value, here, json));
  }
  json += '}';
  return {};
}

Result<void> write_map(const Value::Map& map, const Trail& at, std::string& json) {
  if (is_plain(map)) return write_plain_map(map, at, json);
  json += R"({"$map":[)";
  const char* before = "[";
  for (const auto& [key, value] : map.entries()) {
    const Trail here(at, key);
    json += before;
    if (const auto* name = std::get_if<std::string>(&key)) {
      TRY(write_name(*name, here, json));
    } else {
      json += fmt::to_string(std::get<std::int64_t>(key));
    }
    json += ',';
    TRY(write(value, here, json));
    json += ']';
    before = ",[";
  }
  json += "]}";
  return {};
}

Result<void> write(const Value& value, const Trail& at, std::string& json) {
  if (at.depth() > kMaxValueDepth) {
    return fail(Errc::invalid_argument, "a value has more than {} levels: {}; flatten it", kMaxValueDepth,
                to_string(at));
  }
  auto out = std::back_inserter(json);
  switch (value.kind()) {
    case Value::Kind::null:
      json += "null";
      return {};
    case Value::Kind::boolean:
      json += *value.as_bool() ? "true" : "false";
      return {};
    case Value::Kind::integer:
      json += fmt::to_string(*value.as_int());
      return {};
    case Value::Kind::real:
      fmt::format_to(out, R"({{"$double":"{:016x}"}})", std::bit_cast<std::uint64_t>(*value.as_double()));
      return {};
    case Value::Kind::string:
      return write_name(*value.as_string(), at, json);
    case Value::Kind::bytes:
      fmt::format_to(out, R"({{"$bytes":"{}"}})", to_base64(*value.as_bytes()));
      return {};
    case Value::Kind::list:
      return write_list(*value.as_list(), at, json);
    case Value::Kind::tuple:
      json += R"({"$tuple":)";
      TRY(write_list(*value.as_tuple(), at, json));
      json += '}';
      return {};
    case Value::Kind::map:
      return write_map(*value.as_map(), at, json);
  }
  return fail(Errc::internal, "a value of no known kind at {}", to_string(at));
}

/// Handles the events of a JSON parser and builds the value from them, without a tree of the text. A tagged
/// value is an object at first, whose single entry is then examined.
class ValueReader {
 public:
  explicit ValueReader(std::size_t most_levels) : most_levels_(most_levels) {}

  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  bool null() { return add({}, 0); }
  bool boolean(bool value) { return add(value, 0); }
  bool number_integer(number_integer_t value) { return add(value, 0); }
  bool number_unsigned(number_unsigned_t value);
  bool number_float(number_float_t value, const string_t&) {
    return refuse("found the number {}, expected {{\"$double\": ...}}", value);
  }
  bool string(string_t& text) { return add(std::move(text), 0); }
  bool binary(binary_t&) { return refuse("binary is not JSON"); }
  bool start_object(std::size_t) { return start(true); }
  bool key(string_t& name) {
    frames_.back().key = std::move(name);
    return true;
  }
  bool end_object();
  bool start_array(std::size_t) { return start(false); }
  bool end_array();
  bool parse_error(std::size_t, const std::string&, const Json::exception&) { return false; }

  Result<Value> take(bool parsed);

 private:
  /// A list or an object that has not ended.
  struct Frame {
    bool is_object = false;
    std::size_t levels = 0;  ///< of nested values, including this one unless it is empty
    Value::List items;
    std::vector<Value::Entry> entries;
    std::string key;
  };

  bool start(bool is_object);
  bool add(Value value, std::size_t levels);
  bool add_tagged(Frame frame);
  bool add_pairs(Value content, std::size_t levels);
  std::string place() const;
  template <class... Args>
  bool refuse(fmt::format_string<Args...> format, Args&&... args) {
    failure_ =
        Result<void>(fail(Errc::corrupt, "the stored value at {} is damaged or from a newer version: {}",
                          place(), fmt::format(format, std::forward<Args>(args)...)));
    return false;
  }

  std::size_t most_levels_;
  std::vector<Frame> frames_;
  Value value_;
  Result<void> failure_;
};

/// The reader's position in Trail's format; tags do not count.
std::string ValueReader::place() const {
  constexpr std::size_t kMostBytes = 60;
  KeyPath path;
  for (const auto& frame : frames_) {
    if (!frame.is_object) path.emplace_back(static_cast<std::int64_t>(frame.items.size()));
    if (frame.is_object && !frame.key.starts_with('$')) path.emplace_back(frame.key.substr(0, kMostBytes));
  }
  return to_string(path);
}

bool ValueReader::number_unsigned(number_unsigned_t value) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (value > kMax) return refuse("{} does not fit into 64 bits with a sign", value);
  return add(static_cast<std::int64_t>(value), 0);
}

bool ValueReader::start(bool is_object) {
  // A level takes three: an object with a tag, its list, and a pair in it.
  if (frames_.size() > 3 * most_levels_) return refuse("it has more than {} levels", most_levels_);
  frames_.push_back({is_object, 0, {}, {}, {}});
  return true;
}

bool ValueReader::add(Value value, std::size_t levels) {
  // The list and the pairs of an open tag do not count as levels.
  const std::size_t most = frames_.empty() ? most_levels_ : most_levels_ + 2;
  if (levels > most) return refuse("it has more than {} levels", most_levels_);
  if (frames_.empty()) {
    value_ = std::move(value);
    return true;
  }
  auto& frame = frames_.back();
  frame.levels = std::max(frame.levels, levels + 1);
  if (frame.is_object) {
    frame.entries.push_back({Key(std::move(frame.key)), std::move(value)});
  } else {
    frame.items.push_back(std::move(value));
  }
  return true;
}

bool ValueReader::end_array() {
  Frame frame = std::move(frames_.back());
  frames_.pop_back();
  return add(std::move(frame.items), frame.levels);
}

bool ValueReader::end_object() {
  Frame frame = std::move(frames_.back());
  frames_.pop_back();
  for (const auto& entry : frame.entries) {
    const auto& name = std::get<std::string>(entry.key);
    if (!name.starts_with('$')) continue;
    if (frame.entries.size() == 1) return add_tagged(std::move(frame));
    return refuse("the tag \"{}\" stands next to {} other names", name, frame.entries.size() - 1);
  }
  auto map = Value::Map::from_entries(std::move(frame.entries));
  if (!map) return refuse("{}", map.error().message);
  return add(*std::move(map), frame.levels);
}

bool ValueReader::add_tagged(Frame frame) {
  const auto& tag = std::get<std::string>(frame.entries.front().key);
  Value& content = frame.entries.front().value;
  const std::size_t levels = frame.levels - 1;
  if (tag == "$tuple") {
    if (content.as_list() == nullptr) return refuse("expected a list, found {}", content.type_name());
    return add(Value::tuple(std::move(*content.as_list())), levels);
  }
  if (tag == "$map") return add_pairs(std::move(content), levels);
  if (tag == "$bytes") {
    auto bytes = content.as_string() != nullptr ? from_base64(*content.as_string()) : std::nullopt;
    return bytes ? add(*std::move(bytes), 0) : refuse("\"$bytes\" takes base64 with padding");
  }
  if (tag == "$double") {
    const auto real = content.as_string() != nullptr ? real_from(*content.as_string()) : std::nullopt;
    return real ? add(*real, 0) : refuse("\"$double\" takes 16 hex digits");
  }
  return refuse("unknown tag \"{}\"", tag);
}

bool ValueReader::add_pairs(Value content, std::size_t levels) {
  if (content.as_list() == nullptr)
    return refuse("\"$map\" takes a list of pairs, found {}", content.type_name());
  std::vector<Value::Entry> entries;
  entries.reserve(content.as_list()->size());
  for (Value& item : *content.as_list()) {
    auto* pair = item.as_list();
    if (pair == nullptr || pair->size() != 2) return refuse("\"$map\" takes pairs of key and value");
    const Value& key = pair->front();
    if (key.as_string() == nullptr && !key.as_int())
      return refuse("a key is a string or an integer, found {}", key.type_name());
    entries.push_back({key.as_int() ? Key(*key.as_int()) : Key(*key.as_string()), std::move(pair->back())});
  }
  auto map = Value::Map::from_entries(std::move(entries));
  if (!map) return refuse("{}", map.error().message);
  // The list and its pairs are one level, that of the map.
  return add(*std::move(map), std::max<std::size_t>(levels, 1) - 1);
}

Result<Value> ValueReader::take(bool parsed) {
  TRY(std::move(failure_));
  if (!parsed) return fail(Errc::corrupt, "values do not parse: this is not JSON");
  return std::move(value_);
}

}  // namespace

Result<std::string> value_text(const Value& value) {
  std::string json;
  TRY(write(value, Trail(), json));
  return json;
}

Result<Value> parse_value(std::string_view text, std::size_t most_levels) {
  ValueReader reader(most_levels);
  const bool parsed = Json::sax_parse(text, &reader);
  return reader.take(parsed);
}

}  // namespace troupe::core
