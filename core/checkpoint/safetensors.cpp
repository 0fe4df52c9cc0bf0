#include "core/checkpoint/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "core/checkpoint/json_cursor.hpp"
#include "core/errors.hpp"
#include "core/layout/arithmetic.hpp"
#include "core/values/json_check.hpp"
#include "core/values/json_text.hpp"

namespace troupe::core {

namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::int64_t kAlignment = 64;
constexpr std::size_t kLongestType = 32;
constexpr const char* kShardingInfo = "DCP_SHARDING_INFO";

constexpr std::array<std::pair<DType, std::string_view>, 15> kNames{{{DType::f64, "F64"},
                                                                     {DType::f32, "F32"},
                                                                     {DType::f16, "F16"},
                                                                     {DType::bf16, "BF16"},
                                                                     {DType::f8_e4m3, "F8_E4M3"},
                                                                     {DType::f8_e5m2, "F8_E5M2"},
                                                                     {DType::i64, "I64"},
                                                                     {DType::i32, "I32"},
                                                                     {DType::i16, "I16"},
                                                                     {DType::i8, "I8"},
                                                                     {DType::u64, "U64"},
                                                                     {DType::u32, "U32"},
                                                                     {DType::u16, "U16"},
                                                                     {DType::u8, "U8"},
                                                                     {DType::boolean, "BOOL"}}};

/// What writers have beyond these, since safetensors 0.6 and later: the bits of an element.
constexpr std::array<std::pair<std::string_view, unsigned>, 8> kOtherBits{{{"F4", 4},
                                                                           {"F6_E2M3", 6},
                                                                           {"F6_E3M2", 6},
                                                                           {"F8_E8M0", 8},
                                                                           {"F8_E4M3FNUZ", 8},
                                                                           {"F8_E5M2FNUZ", 8},
                                                                           {"C64", 64},
                                                                           {"C128", 128}}};

bool read_natural(const Json& value, std::uint64_t& number) {
  if (!value.is_number_unsigned()) return false;
  number = value.get<std::uint64_t>();
  return true;
}

Result<Shape> shape_of(const Json& value, const std::string& name) {
  auto bad = [&] { return fail(Errc::corrupt, "the shape of tensor '{}' is not a list of sizes", name); };
  if (!value.is_array() || value.size() > 64) return bad();
  Shape shape;
  for (const auto& extent : value) {
    std::uint64_t number = 0;
    if (!read_natural(extent, number) || number > (std::uint64_t{1} << 62)) return bad();
    shape.push_back(static_cast<std::int64_t>(number));
  }
  if (auto good = check_shape(shape); !good)
    return fail(Errc::corrupt, "tensor '{}': {}", name, good.error().message);
  return shape;
}

/// Whether it is spelled as names of types are, so that a newer writer may mean one by it.
bool is_type_name(std::string_view text) {
  return !text.empty() &&
         text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == std::string_view::npos;
}

/// Bits of an element; nothing for a type of which only the name is known.
std::optional<unsigned> bits_of(std::string_view dtype) {
  for (const auto& [name, bits] : kOtherBits) {
    if (name == dtype) return bits;
  }
  const auto known = dtype_from_safetensors(dtype);
  if (!known) return std::nullopt;
  return static_cast<unsigned>(8 * size_of(*known));
}

Result<SafetensorsEntry> entry_of(const std::string& name, const Json& value, std::uint64_t data_begin,
                                  std::uint64_t file_bytes) {
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets") || !value["dtype"].is_string())
    return fail(Errc::corrupt, "tensor '{}' of a safetensors header needs dtype, shape and data_offsets",
                name);
  SafetensorsEntry entry;
  entry.name = name;
  const auto& type = value["dtype"].get_ref<const std::string&>();
  if (const auto known = dtype_from_safetensors(type)) {
    entry.dtype = *known;
  } else if (!is_type_name(type)) {
    return fail(Errc::corrupt, "tensor '{}': {}", name, known.error().message);
  }
  entry.shape = TRY(shape_of(value["shape"], name));
  const auto& offsets = value["data_offsets"];
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  const std::uint64_t room = file_bytes - data_begin;
  if (!offsets.is_array() || offsets.size() != 2 || !read_natural(offsets[0], begin) ||
      !read_natural(offsets[1], end) || begin > end || end > room)
    return fail(Errc::corrupt, "tensor '{}' does not lie in the {} data bytes of its file", name, room);
  const auto elements = static_cast<std::uint64_t>(elements_of(entry.shape));
  const auto bits = bits_of(type);
  // Elements of less than a byte fill whole bytes together. Few enough fit into a file that bits can be
  // counted.
  const bool fits = elements <= (std::uint64_t{1} << 56) &&
                    (!bits || (elements * *bits % 8 == 0 && elements * *bits / 8 == end - begin));
  if (!fits)
    return fail(Errc::corrupt, "tensor '{}' has {} bytes, its shape {} of {} needs {} elements", name,
                end - begin, to_string(entry.shape), type.substr(0, kLongestType), elements);
  entry.begin = data_begin + begin;
  entry.end = data_begin + end;
  return entry;
}

/// The order of their bytes.
constexpr auto comes_before = [](const auto& a, const auto& b) {
  return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
};

/// Both lists are in the order of their bytes.
Result<void> check_no_gaps(const SafetensorsHeader& header, std::uint64_t file_bytes) {
  std::uint64_t expected = header.data_begin;
  const auto follows = [&](const auto& entry) -> Result<void> {
    if (entry.begin != expected)
      return fail(Errc::corrupt,
                  "tensor '{}' begins at byte {} of its file, expected {}: a gap or an overlap", entry.name,
                  entry.begin, expected);
    expected = entry.end;
    return {};
  };
  auto unknown = header.unknown.begin();
  for (const auto& entry : header.entries) {
    for (; unknown != header.unknown.end() && comes_before(*unknown, entry); ++unknown)
      TRY(follows(*unknown));
    TRY(follows(entry));
  }
  for (; unknown != header.unknown.end(); ++unknown) TRY(follows(*unknown));
  if (expected != file_bytes)
    return fail(Errc::corrupt, "the file has {} bytes, its tensors end at {}", file_bytes, expected);
  return {};
}

/// Parses without exceptions and refuses duplicate members. A header is an object of objects of short lists:
/// no tree is built for anything deeper or longer.
Result<Json> parse_header_json(std::string_view text) {
  constexpr std::size_t kMostLevels = 3;
  const JsonCheck check = check_json(text, kMostLevels, kMaxAxes);
  Json header = check.fits ? Json::parse(text, nullptr, false) : Json(Json::value_t::discarded);
  if (header.is_discarded() || !header.is_object())
    return fail(Errc::corrupt, "a safetensors header is not a JSON object");
  if (!check.twice.empty()) return fail(Errc::corrupt, "a safetensors header has '{}' twice", check.twice);
  return header;
}

/// Writes the opening of the object and its member "__metadata__".
void append_metadata(std::string& json, const std::map<std::string, std::string>& metadata) {
  json += '{';
  append_string(json, kMetadataName);
  std::string_view before = ":{";
  for (const auto& [key, text] : metadata) {
    json += before;
    append_string(json, key);
    json += ':';
    append_string(json, text);
    before = ",";
  }
  json += '}';
}

void append_entry(std::string& json, const SafetensorsEntry& entry) {
  append_string(json, entry.name);
  json += R"(:{"dtype":")";
  json += safetensors_name(entry.dtype);
  json += R"(","shape":)";
  append_sizes(json, entry.shape);
  json += R"(,"data_offsets":[)";
  append_number(json, entry.begin);
  json += ',';
  append_number(json, entry.end);
  json += "]}";
}

}  // namespace

std::string_view safetensors_name(DType dtype) noexcept {
  return std::find_if(kNames.begin(), kNames.end(), [&](const auto& name) { return name.first == dtype; })
      ->second;
}

Result<DType> dtype_from_safetensors(std::string_view name) {
  for (const auto& [dtype, known] : kNames) {
    if (known == name) return dtype;
  }
  return fail(Errc::unavailable, "the element type '{}' is not one that this reader knows",
              name.substr(0, kLongestType));
}

std::string safetensors_header(std::vector<SafetensorsEntry>& entries,
                               const std::map<std::string, std::string>& metadata) {
  std::string file(kLengthBytes, '\0');
  std::string_view before = "{";
  if (!metadata.empty()) {
    append_metadata(file, metadata);
    before = ",";
  }
  std::unordered_set<std::string_view> names{kMetadataName};
  std::uint64_t end = 0;
  for (auto& entry : entries) {
    CHECK(names.insert(entry.name).second, "tensors of one file have names of their own");
    entry.begin = end;
    end += static_cast<std::uint64_t>(elements_of(entry.shape)) * size_of(entry.dtype);
    entry.end = end;
    file += before;
    append_entry(file, entry);
    before = ",";
  }
  file += before == "{" ? "{}" : "}";
  file.resize(static_cast<std::size_t>(round_up(static_cast<std::int64_t>(file.size()), kAlignment)), ' ');
  const std::uint64_t length = file.size() - kLengthBytes;
  for (std::size_t i = 0; i < kLengthBytes; ++i) file[i] = static_cast<char>(length >> (8 * i));
  for (auto& entry : entries) {
    entry.begin += file.size();
    entry.end += file.size();
  }
  return file;
}

Result<std::uint64_t> safetensors_header_bytes(std::span<const std::byte> first_bytes,
                                               std::uint64_t file_bytes) {
  if (file_bytes < kLengthBytes || first_bytes.size() < kLengthBytes)
    return fail(Errc::corrupt, "a safetensors file has at least 8 bytes, this one has {}", file_bytes);
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;)
    length = length << 8 | std::to_integer<std::uint64_t>(first_bytes[i]);
  if (length > kMaxHeaderBytes || length > file_bytes - kLengthBytes)
    return fail(Errc::corrupt, "the safetensors header says it has {} bytes, the file has {}", length,
                file_bytes);
  return kLengthBytes + length;
}

Result<void> check_header_size(std::string_view header) {
  if (header.size() <= kLengthBytes + kMaxHeaderBytes) return {};
  return fail(Errc::invalid_argument,
              "the header of a safetensors file has {} bytes, and readers take at most {}: it has too many "
              "tensors, or too long names",
              header.size() - kLengthBytes, kMaxHeaderBytes);
}

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> beginning,
                                                   std::uint64_t file_bytes) {
  const std::uint64_t data_begin = TRY(safetensors_header_bytes(beginning, file_bytes));
  if (beginning.size() < data_begin)
    return fail(Errc::corrupt, "the safetensors header has {} bytes, only {} are there", data_begin,
                beginning.size());
  std::string_view text(reinterpret_cast<const char*>(beginning.data()) + kLengthBytes,
                        data_begin - kLengthBytes);
  const Json json = TRY(parse_header_json(text));
  SafetensorsHeader header;
  header.data_begin = data_begin;
  for (const auto& [name, value] : json.items()) {
    if (name != kMetadataName) {
      auto entry = TRY(entry_of(name, value, data_begin, file_bytes));
      const auto& type = value["dtype"].get_ref<const std::string&>();
      if (dtype_from_safetensors(type)) {
        header.entries.push_back(std::move(entry));
      } else {
        header.unknown.push_back(
            {std::move(entry.name), type.substr(0, kLongestType), entry.begin, entry.end});
      }
      continue;
    }
    if (!value.is_object())
      return fail(Errc::corrupt, "__metadata__ of a safetensors header is not an object");
    for (const auto& [key, member] : value.items()) {
      if (!member.is_string())
        return fail(Errc::corrupt, "'{}' in __metadata__ of a safetensors header is not a string", key);
      header.metadata[key] = member.get<std::string>();
    }
  }
  std::sort(header.entries.begin(), header.entries.end(), comes_before);
  std::sort(header.unknown.begin(), header.unknown.end(), comes_before);
  TRY(check_no_gaps(header, file_bytes));
  return header;
}

std::map<std::string, std::string> sharding_metadata(std::span<const SafetensorsEntry> entries,
                                                     std::span<const Shape> offsets) {
  std::string info = "{";
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) info += ',';
    append_string(info, entries[i].name);
    info += R"(:{"saved_offsets":)";
    append_sizes(info, offsets[i]);
    info += '}';
  }
  info += '}';
  return {{kShardingInfo, std::move(info)}, {"DCP_VERSION", "1.0"}, {"format", "pt"}};
}

Result<std::vector<Shape>> sharding_offsets(const SafetensorsHeader& header) {
  std::vector<Shape> offsets;
  const auto found = header.metadata.find(kShardingInfo);
  if (found == header.metadata.end()) {
    for (const auto& entry : header.entries) offsets.emplace_back(entry.shape.size(), 0);
    return offsets;
  }
  const Json info = TRY(parse_header_json(found->second));
  for (const auto& entry : header.entries) {
    const auto place = info.find(entry.name);
    if (place == info.end() || !place->is_object() || !place->contains("saved_offsets"))
      return fail(Errc::corrupt, "DCP_SHARDING_INFO has no saved_offsets of tensor '{}'", entry.name);
    offsets.push_back(TRY(shape_of((*place)["saved_offsets"], entry.name)));
    if (offsets.back().size() != entry.shape.size())
      return fail(Errc::corrupt, "saved_offsets of tensor '{}' have {} axes, the tensor has {}", entry.name,
                  offsets.back().size(), entry.shape.size());
  }
  return offsets;
}

}  // namespace troupe::core
