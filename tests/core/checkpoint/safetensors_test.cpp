#include "core/checkpoint/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/core/checkpoint/saved_job.hpp"

namespace troupe::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

/// A file's beginning with this header, not filled up.
std::string file_with(const std::string& header) {
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
  return file + header;
}

Result<SafetensorsHeader> parse(const std::string& header, std::uint64_t data_bytes) {
  const auto file = file_with(header);
  return parse_safetensors_header(bytes_in(file), file.size() + data_bytes);
}

std::string refusal_of_header(const std::string& header, std::uint64_t data_bytes) {
  const auto parsed = parse(header, data_bytes);
  if (parsed) return "no error";
  EXPECT_EQ(parsed.error().code, Errc::corrupt) << header;
  return parsed.error().message;
}

TEST(SafetensorsHeader, HasTheBytesThatTheFormatAsksFor) {
  std::vector<SafetensorsEntry> entries{{"a", DType::f32, {2, 3}, 0, 0}, {"b", DType::bf16, {}, 0, 0}};

  const auto header = safetensors_header(entries, {{"format", "pt"}});

  const std::string json =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}})";
  const std::string expected = file_with(json + std::string(192 - 8 - json.size(), ' '));
  EXPECT_EQ(header, expected);
  EXPECT_THAT(entries, ElementsAre(SafetensorsEntry{"a", DType::f32, {2, 3}, 192, 216},
                                   SafetensorsEntry{"b", DType::bf16, {}, 216, 218}));
}

TEST(SafetensorsHeader, OfAFileWithoutTensorsIsAnEmptyObject) {
  std::vector<SafetensorsEntry> none;

  const auto header = safetensors_header(none, {});

  EXPECT_EQ(header, file_with("{}" + std::string(54, ' ')));
  EXPECT_EQ(parse_safetensors_header(bytes_in(header), 64).value(), (SafetensorsHeader{{}, {}, {}, 64}));
}

TEST(SafetensorsHeader, IsRefusedForASizeThatReadersRefuse) {
  std::string header(8 + kMaxHeaderBytes, ' ');
  EXPECT_TRUE(check_header_size(header));
  header += ' ';

  const auto refused = check_header_size(header);

  ASSERT_FALSE(refused);
  EXPECT_EQ(
      refused.error().message,
      "the header of a safetensors file has 100000001 bytes, and readers take at most 100000000: it has "
      "too many tensors, or too long names");
}

TEST(SafetensorsHeader, NamesEveryElementType) {
  const std::vector<std::string> names{"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I64", "I32",
                                       "I16", "I8",  "U64", "U32",  "U16",     "U8",      "BOOL"};

  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(safetensors_name(dtype), names[i]);
    EXPECT_EQ(dtype_from_safetensors(names[i]).value(), dtype);
  }
  EXPECT_EQ(dtype_from_safetensors("f32").error().message,
            "the element type 'f32' is not one that this reader knows");
}

RC_GTEST_PROP(SafetensorsHeader, ReadsAsItWasWritten, ()) {
  std::vector<SafetensorsEntry> entries;
  std::vector<Shape> offsets;
  for (auto count = static_cast<std::size_t>(between(0, 6)); count > 0; --count) {
    entries.push_back({any_key(count), static_cast<DType>(between(0, 14)), any_shape(), 0, 0});
    offsets.emplace_back();
    for (std::size_t axis = 0; axis < entries.back().shape.size(); ++axis)
      offsets.back().push_back(between(0, 1000));
  }
  const auto metadata = sharding_metadata(entries, offsets);

  const auto text = safetensors_header(entries, metadata);

  const auto end = entries.empty() ? text.size() : entries.back().end;
  const auto header = parse_safetensors_header(bytes_in(text), end).value();
  RC_ASSERT(text.size() % 64 == 0U);
  RC_ASSERT(header.data_begin == text.size());
  RC_ASSERT(header.metadata == metadata);
  const auto found = sharding_offsets(header).value();
  RC_ASSERT(header.entries.size() == entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    // Tensors without elements begin where another does, so the order of bytes does not tell theirs.
    const auto at = std::find(header.entries.begin(), header.entries.end(), entries[i]);
    RC_ASSERT(at != header.entries.end());
    RC_ASSERT(found[static_cast<std::size_t>(at - header.entries.begin())] == offsets[i]);
  }
}

TEST(SafetensorsHeader, TakesTensorsInAnyOrderOfNames) {
  const auto header = parse(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                            R"("a":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
                            R"("c":{"shape":[0],"data_offsets":[2,2],"dtype":"F64"}})",
                            3)
                          .value();

  EXPECT_EQ(header.entries[0].name, "b");
  EXPECT_EQ(header.entries[1].name, "c");
  EXPECT_EQ(header.entries[2].name, "a");
  EXPECT_THAT(header.metadata, IsEmpty());
}

TEST(SafetensorsHeader, IsRefusedWhereverItIsCut) {
  std::vector<SafetensorsEntry> entries{{"a", DType::u8, {2}, 0, 0}};
  const auto text = safetensors_header(entries, {});

  for (std::size_t length = 0; length < text.size(); ++length) {
    const auto cut = bytes_in(text).first(length);
    EXPECT_FALSE(parse_safetensors_header(cut, text.size() + 2)) << length;
    EXPECT_FALSE(parse_safetensors_header(cut, length)) << length;
  }
  EXPECT_FALSE(parse_safetensors_header(bytes_in(text), text.size() + 1));
  EXPECT_FALSE(parse_safetensors_header(bytes_in(text), text.size() + 3));
  EXPECT_TRUE(parse_safetensors_header(bytes_in(text), text.size() + 2));
}

TEST(SafetensorsHeader, IsRefusedOrHasAnotherHashWhateverBitFlips) {
  std::vector<SafetensorsEntry> entries{{"a", DType::u8, {2}, 0, 0}, {"b", DType::f16, {1}, 0, 0}};
  const auto text = safetensors_header(entries, sharding_metadata(entries, std::vector<Shape>{{4}, {0}}));
  const auto hash = hash64(text);
  std::size_t readable = 0;

  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    auto flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const auto header = parse_safetensors_header(bytes_in(flipped), text.size() + 4);
    if (header && sharding_offsets(*header)) ++readable;
    EXPECT_NE(hash64(flipped), hash) << bit;
  }

  // A flip in a name, say, leaves a good header: only the hash tells.
  EXPECT_GT(readable, 0U);
}

TEST(SafetensorsHeader, RefusesLengthsThatTheFileDoesNotHave) {
  const std::string longer = "\xff\xff\xff\xff\xff\xff\xff\xff{}";
  EXPECT_EQ(safetensors_header_bytes(bytes_in(longer), longer.size()).error().message,
            "the safetensors header says it has 18446744073709551615 bytes, the file has 10");
  EXPECT_EQ(safetensors_header_bytes(bytes_in("1234567"), 7).error().message,
            "a safetensors file has at least 8 bytes, this one has 7");
  std::string huge(8, '\0');
  huge[3] = 6;  // 6 * 2^24 bytes
  EXPECT_EQ(safetensors_header_bytes(bytes_in(huge), std::uint64_t{1} << 40).error().message,
            "the safetensors header says it has 100663296 bytes, the file has 1099511627776");
}

TEST(SafetensorsHeader, RefusesWhatIsNoObjectOfTensors) {
  for (const char* text : {"", "[]", "null", "3", "{", "{\"a\":1e999}", "{\"\xff\":1}", "{} x"})
    EXPECT_EQ(refusal_of_header(text, 0), "a safetensors header is not a JSON object") << text;
  EXPECT_EQ(refusal_of_header(std::string(1'000'000, '['), 0), "a safetensors header is not a JSON object");
  EXPECT_EQ(refusal_of_header("{\"a\":" + std::string(100'000, '{'), 0),
            "a safetensors header is not a JSON object");
  EXPECT_EQ(refusal_of_header(R"({"__metadata__":[]})", 0),
            "__metadata__ of a safetensors header is not an object");
  EXPECT_EQ(refusal_of_header(R"({"__metadata__":{"a":1}})", 0),
            "'a' in __metadata__ of a safetensors header is not a string");
}

TEST(SafetensorsHeader, RefusesNamesThatComeTwice) {
  const std::string tensor = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";

  EXPECT_EQ(refusal_of_header("{\"a\":" + tensor + ",\"a\":" + tensor + "}", 0),
            "a safetensors header has 'a' twice");
  EXPECT_EQ(refusal_of_header(R"({"__metadata__":{"k":"1","k":"2"}})", 0),
            "a safetensors header has 'k' twice");
}

TEST(SafetensorsHeader, RefusesOtherTypesAtEveryPlace) {
  const nlohmann::json good = {{"dtype", "U8"}, {"shape", {2}}, {"data_offsets", {0, 2}}};
  const auto text_of = [](const nlohmann::json& tensor) { return nlohmann::json{{"a", tensor}}.dump(); };
  ASSERT_TRUE(parse(text_of(good), 2));
  const std::vector<nlohmann::json> others{nullptr,    true,       -1,
                                           1.5,        "x",        nlohmann::json::object(),
                                           {{"a", 1}}, {{}},       {nullptr},
                                           {-1},       {"2"},      {0.5, 2},
                                           {0, 2, 2},  UINT64_MAX, {UINT64_MAX},
                                           {3},        {0, 3},     {0, 1},
                                           {2, 0},     {1, 3},     {0, UINT64_MAX}};

  for (const auto& other : others) {
    EXPECT_NE(refusal_of_header(text_of(other), 2), "no error") << other;
    for (const char* member : {"dtype", "shape", "data_offsets"}) {
      auto tensor = good;
      tensor[member] = other;
      EXPECT_NE(refusal_of_header(text_of(tensor), 2), "no error") << tensor;
      tensor.erase(member);
      EXPECT_EQ(refusal_of_header(text_of(tensor), 2),
                "tensor 'a' of a safetensors header needs dtype, shape and data_offsets");
    }
  }
}

TEST(SafetensorsHeader, SaysWhatIsWrongWithATensor) {
  const auto tensor = [](const char* shape, const char* offsets) {
    return R"({"a":{"dtype":"F32","shape":)" + std::string(shape) + R"(,"data_offsets":)" + offsets + "}}";
  };

  EXPECT_EQ(refusal_of_header(tensor("[2]", "[0,12]"), 8),
            "tensor 'a' does not lie in the 8 data bytes of its file");
  EXPECT_EQ(refusal_of_header(tensor("[3]", "[0,8]"), 8),
            "tensor 'a' has 8 bytes, its shape (3) of F32 needs 3 elements");
  EXPECT_EQ(refusal_of_header(tensor("[2]", "[0,7]"), 7),
            "tensor 'a' has 7 bytes, its shape (2) of F32 needs 2 elements");
  EXPECT_EQ(
      refusal_of_header(tensor("[4611686018427387904]", "[0,0]"), 0),
      "tensor 'a' has 0 bytes, its shape (4611686018427387904) of F32 needs 4611686018427387904 elements");
  EXPECT_EQ(refusal_of_header(tensor("[4294967296,4294967296]", "[0,0]"), 0),
            "tensor 'a': the shape (4294967296, 4294967296) has more than 2^62 elements");
  EXPECT_EQ(refusal_of_header(tensor("[1]", "[4,8]"), 8),
            "tensor 'a' begins at byte 66 of its file, expected 62: a gap or an overlap");
  EXPECT_EQ(refusal_of_header(tensor("[1]", "[0,4]"), 8), "the file has 70 bytes, its tensors end at 66");
  EXPECT_EQ(refusal_of_header(R"({"a":{"dtype":"F4","shape":[2,3],"data_offsets":[0,2]}})", 2),
            "tensor 'a' has 2 bytes, its shape (2, 3) of F4 needs 6 elements");
  EXPECT_EQ(refusal_of_header(R"({"a":{"dtype":"C64","shape":[2],"data_offsets":[0,8]}})", 8),
            "tensor 'a' has 8 bytes, its shape (2) of C64 needs 2 elements");
  EXPECT_EQ(refusal_of_header(R"({"a":{"dtype":"NEW","shape":[2],"data_offsets":[0,3]}})", 2),
            "tensor 'a' does not lie in the 2 data bytes of its file");
}

TEST(SafetensorsHeader, NamesTensorsOfTypesThatItDoesNotKnow) {
  const auto header =
      parse(R"({"a":{"dtype":"F8_E8M0","shape":[4],"data_offsets":[0,4]},)"
            R"("b":{"dtype":"F4","shape":[2,8],"data_offsets":[4,12]},)"
            R"("c":{"dtype":"U8","shape":[1],"data_offsets":[12,13]},)"
            R"("d":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[13,16]},)"
            R"("e":{"dtype":"C64","shape":[2],"data_offsets":[16,32]},)"
            R"("f":{"dtype":"A_TYPE_OF_YEARS_TO_COME_WITH_A_LONG_NAME","shape":[3],"data_offsets":[32,37]}})",
            37);

  ASSERT_TRUE(header.has_value()) << header.error().message;
  ASSERT_EQ(header->entries.size(), 1U);
  EXPECT_EQ(header->entries[0].name, "c");
  std::string types;
  for (const auto& tensor : header->unknown) types += tensor.name + " " + tensor.dtype + ", ";
  EXPECT_EQ(types, "a F8_E8M0, b F4, d F6_E2M3, e C64, f A_TYPE_OF_YEARS_TO_COME_WITH_A_L, ");
}

TEST(ShardingOffsets, AreZeroWhereTheFileSaysNothing) {
  const auto header = parse(R"({"a":{"dtype":"U8","shape":[1,2],"data_offsets":[0,2]},)"
                            R"("b":{"dtype":"U8","shape":[],"data_offsets":[2,3]}})",
                            3)
                          .value();

  EXPECT_THAT(sharding_offsets(header).value(), ElementsAre(Shape{0, 0}, Shape{}));
}

TEST(ShardingOffsets, AreWrittenAsPyTorchReadsThem) {
  const std::vector<SafetensorsEntry> entries{{"a.b", DType::u8, {1, 2}, 0, 0}, {"\"", DType::u8, {}, 0, 0}};

  const auto metadata = sharding_metadata(entries, std::vector<Shape>{{3, 0}, {}});

  EXPECT_THAT(metadata,
              UnorderedElementsAre(
                  Pair("DCP_SHARDING_INFO", R"({"a.b":{"saved_offsets":[3,0]},"\"":{"saved_offsets":[]}})"),
                  Pair("DCP_VERSION", "1.0"), Pair("format", "pt")));
}

TEST(ShardingOffsets, RefuseMetadataThatDoesNotFitTheTensors) {
  SafetensorsHeader header{{{"a", DType::u8, {1, 2}, 0, 2}}, {}, {}, 0};
  const auto refused = [&](const std::string& info) {
    header.metadata["DCP_SHARDING_INFO"] = info;
    const auto offsets = sharding_offsets(header);
    return offsets ? "no error" : offsets.error().message;
  };

  EXPECT_EQ(refused(R"({"a":{"saved_offsets":[0,4]}})"), "no error");
  EXPECT_EQ(refused(R"({"a":{"saved_offsets":[0]}})"),
            "saved_offsets of tensor 'a' have 1 axes, the tensor has 2");
  for (const char* info : {"{}", R"({"a":3})", R"({"a":null})", R"({"a":{}})", R"({"a":[]})"})
    EXPECT_EQ(refused(info), "DCP_SHARDING_INFO has no saved_offsets of tensor 'a'") << info;
  for (const char* info : {R"({"a":{"saved_offsets":null}})", R"({"a":{"saved_offsets":[0,-1]}})",
                           R"({"a":{"saved_offsets":{"0":1}}})", R"({"a":{"saved_offsets":["0",1]}})"})
    EXPECT_EQ(refused(info), "the shape of tensor 'a' is not a list of sizes") << info;
  for (const char* info : {"", "[", "[]", "\"a\""})
    EXPECT_EQ(refused(info), "a safetensors header is not a JSON object") << info;
}

}  // namespace
}  // namespace troupe::core
