#include "core/interop/dcp_metadata.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>

#include "core/interop/pickle_writer.hpp"
#include "core/interop/plain_data.hpp"
#include "core/interop/torch_names.hpp"
#include "tests/core/interop/golden.hpp"

namespace troupe::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Bytes = std::vector<std::byte>;
using Json = nlohmann::json;

DcpMetadata golden_metadata(const std::string& folder) {
  auto metadata = parse_dcp_metadata(golden_bytes(folder + "/.metadata"));
  EXPECT_TRUE(metadata.has_value()) << metadata.error().message;
  return metadata.value();
}

template <class T>
const T& named(const std::vector<T>& list, std::string_view key) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const T& each) { return each.key == key; });
  EXPECT_NE(found, list.end()) << key;
  // Throws where there is none, which ends the test.
  return list.at(static_cast<std::size_t>(found - list.begin()));
}

/// A checkpoint's files, read as its metadata says.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& folder) : metadata(golden_metadata(folder)) {
    for (const std::string& name : metadata.files) files_.push_back(golden_bytes(folder + "/" + name));
  }

  std::span<const std::byte> at(const DcpPlace& place) const {
    return std::span(files_.at(place.file)).subspan(place.offset, place.bytes);
  }

  /// All elements of a tensor, put together from its chunks.
  Bytes elements(const DcpTensor& tensor) const {
    const std::size_t element = size_of(tensor.dtype);
    Bytes whole(static_cast<std::size_t>(elements_of(tensor.shape)) * element);
    for (const DcpChunk& chunk : tensor.chunks) {
      const auto part = dcp_chunk_elements(tensor, chunk, at(chunk.place), true);
      EXPECT_TRUE(part.has_value()) << part.error().message;
      if (!part) return {};
      for (const CopyRun& run : copy_runs(chunk.box, Box::whole(tensor.shape), chunk.box)) {
        std::memcpy(whole.data() + static_cast<std::size_t>(run.to) * element,
                    part->stored.data() + static_cast<std::size_t>(run.from) * element,
                    static_cast<std::size_t>(run.elements) * element);
      }
    }
    return whole;
  }

  DcpMetadata metadata;

 private:
  std::vector<Bytes> files_;
};

/// Plain JSON of values that have no bytes and no integer keys.
Json json_of(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::boolean:
      return *value.as_bool();
    case Value::Kind::integer:
      return *value.as_int();
    case Value::Kind::real:
      return *value.as_double();
    case Value::Kind::string:
      return *value.as_string();
    case Value::Kind::list:
    case Value::Kind::tuple: {
      Json list = Json::array();
      for (const Value& item : value.as_list() ? *value.as_list() : *value.as_tuple())
        list.push_back(json_of(item));
      return list;
    }
    case Value::Kind::map: {
      Json map = Json::object();
      for (const auto& entry : value.as_map()->entries())
        map[std::get<std::string>(entry.key)] = json_of(entry.value);
      return map;
    }
    default:
      return nullptr;
  }
}

/// make_dcp.py gathered the same state with PyTorch.
void expect_all_of(const std::string& folder) {
  const Checkpoint checkpoint(folder);
  const Json expected = golden_json(folder + "/expected.json");

  EXPECT_EQ(checkpoint.metadata.tensors.size(), expected["tensors"].size());
  EXPECT_EQ(checkpoint.metadata.items.size(), expected["items"].size());
  EXPECT_TRUE(checkpoint.metadata.skipped.empty());
  for (const DcpTensor& tensor : checkpoint.metadata.tensors) {
    const Json& theirs = expected["tensors"].at(tensor.key);
    EXPECT_EQ(std::string(torch_name(tensor.dtype)), theirs["dtype"]) << tensor.key;
    EXPECT_EQ(tensor.shape, theirs["shape"].get<Shape>()) << tensor.key;
    EXPECT_EQ(hex_of(checkpoint.elements(tensor)), theirs["bytes"]) << tensor.key;
  }
  for (const DcpItem& item : checkpoint.metadata.items) {
    const auto value = parse_torch_value(checkpoint.at(item.place));
    ASSERT_TRUE(value.has_value()) << item.key << ": " << value.error().message;
    EXPECT_EQ(json_of(*value), expected["items"].at(item.key)) << item.key;
  }
}

TEST(DcpMetadata, ReadsNestedStateOfOneProcess) {
  expect_all_of("plain");
}

TEST(DcpMetadata, ReadsTensorsThatAMeshOfFourRanksCut) {
  expect_all_of("mesh");
}

TEST(DcpMetadata, ReadsAModelAndItsOptimizerOfFsdp) {
  expect_all_of("fsdp");
}

TEST(DcpMetadata, KnowsWhichRankHasWhichRows) {
  const DcpMetadata metadata = golden_metadata("mesh");
  std::vector<std::string> boxes;
  for (const DcpChunk& chunk : named(metadata.tensors, "rows_and_columns").chunks) {
    boxes.push_back(to_string(chunk.box) + " in " + metadata.files.at(chunk.place.file));
  }

  EXPECT_THAT(boxes, ElementsAre("[0:2, 0:3] in __0_0.distcp", "[0:2, 3:6] in __1_0.distcp",
                                 "[2:4, 0:3] in __2_0.distcp", "[2:4, 3:6] in __3_0.distcp"));
}

TEST(DcpMetadata, DropsTheEmptyChunksOfRanksBeyondTheEnd) {
  const DcpMetadata metadata = golden_metadata("mesh");

  EXPECT_EQ(named(metadata.tensors, "fewer_rows_than_ranks").chunks.size(), 1U);
  EXPECT_TRUE(named(golden_metadata("plain").tensors, "model.empty").chunks.empty());
}

TEST(DcpMetadata, RemembersWhereInTheNestedStateAnEntryWas) {
  const DcpMetadata metadata = golden_metadata("plain");

  EXPECT_EQ(named(metadata.tensors, "nested.0.view").path, (KeyPath{"nested", 0, "view"}));
  EXPECT_EQ(named(metadata.items, "step").path, KeyPath{"step"});
}

TEST(DcpMetadata, PassesOverThePlansThatMegatronAdds) {
  DcpMetadata with_plans = golden_metadata("plans");

  EXPECT_EQ(with_plans, golden_metadata("mesh"));
}

TEST(DcpMetadata, ReadsWhatItWrites) {
  for (const std::string folder : {"plain", "mesh", "fsdp"}) {
    const DcpMetadata metadata = golden_metadata(folder);

    const Bytes bytes = encode_dcp_metadata(metadata).value();

    EXPECT_EQ(parse_dcp_metadata(bytes).value(), metadata) << folder;
  }
}

TEST(DcpMetadata, ComparesPlacesWithTheFiles) {
  const DcpMetadata metadata = golden_metadata("mesh");
  const auto all_have = [&](std::uint64_t bytes) {
    return check_dcp_files(metadata, [=](const std::string&) { return std::optional(bytes); });
  };

  EXPECT_TRUE(all_have(1 << 20).has_value());
  EXPECT_THAT(all_have(100).error().message, HasSubstr("which has 100 bytes"));
  EXPECT_THAT(check_dcp_files(metadata, [](const std::string&) { return std::nullopt; }).error().message,
              HasSubstr("which is not there"));
}

TEST(DcpMetadata, ComparesAChunkWithItsArchive) {
  const Checkpoint checkpoint("mesh");
  const DcpTensor& tensor = named(checkpoint.metadata.tensors, "rows_and_columns");
  const DcpChunk& chunk = tensor.chunks[0];
  const auto place = checkpoint.at(chunk.place);
  DcpTensor other_dtype = tensor;
  other_dtype.dtype = DType::i32;
  DcpChunk other_box = chunk;
  other_box.box.extent = {3, 2};
  Bytes altered(place.begin(), place.end());
  const auto elements = dcp_chunk_elements(tensor, chunk, altered, true).value();
  altered[static_cast<std::size_t>(elements.stored.data() - altered.data())] ^= std::byte{1};

  EXPECT_THAT(dcp_chunk_elements(other_dtype, chunk, place, true).error().message,
              HasSubstr("the file has f32 (2, 3), the metadata says i32 (2, 3)"));
  EXPECT_THAT(dcp_chunk_elements(tensor, other_box, place, true).error().message,
              HasSubstr("says f32 (3, 2)"));
  EXPECT_THAT(dcp_chunk_elements(tensor, chunk, place.first(100), true).error().message, HasSubstr("zip"));
  EXPECT_THAT(dcp_chunk_elements(tensor, chunk, altered, true).error().message, HasSubstr("CRC-32"));
  EXPECT_TRUE(dcp_chunk_elements(tensor, chunk, altered, false).has_value());
}

/// A checkpoint of one tensor "w" (4) in two halves, and one item.
DcpMetadata small() {
  return {{"__0_0.distcp"},
          {{"w", DType::f32, {4}, {{{{0}, {2}}, {0, 0, 8}}, {{{2}, {2}}, {0, 8, 8}}}, {}}},
          {{"step", {0, 16, 5}, {}}},
          {}};
}

std::string refusal_to_write(const std::function<void(DcpMetadata&)>& change) {
  DcpMetadata metadata = small();
  change(metadata);
  const auto bytes = encode_dcp_metadata(metadata);
  EXPECT_FALSE(bytes.has_value());
  EXPECT_EQ(bytes ? Errc::internal : bytes.error().code, Errc::invalid_argument);
  return bytes ? "" : bytes.error().message;
}

TEST(DcpMetadata, RefusesToWriteWhatItWouldNotRead) {
  EXPECT_TRUE(encode_dcp_metadata(small()).has_value());
  for (const std::string name : {"", "/etc/passwd", "../x", "a/../x", "a//b", "./a", "a/"}) {
    EXPECT_THAT(refusal_to_write([&](DcpMetadata& m) { m.files[0] = name; }), HasSubstr("not a file name"))
        << name;
  }
  EXPECT_THAT(refusal_to_write([](DcpMetadata& m) { m.files[0] = std::string("a\0b", 3); }),
              HasSubstr("not a file name"));
  EXPECT_THAT(refusal_to_write([](DcpMetadata& m) { m.items[0].key = "w"; }), HasSubstr("'w' comes twice"));
  EXPECT_THAT(refusal_to_write([](DcpMetadata& m) { m.items[0].key = "\xff"; }), HasSubstr("not UTF-8"));
  EXPECT_THAT(refusal_to_write([](DcpMetadata& m) { m.items[0].key = std::string(2049, 'k'); }),
              HasSubstr("a key has 2049 bytes, and readers take at most 2048"));
  EXPECT_THAT(refusal_to_write([](DcpMetadata& m) { m.files[0] = std::string(2049, 'f'); }),
              HasSubstr("of at most 2048 bytes"));
  EXPECT_THAT(refusal_to_write([](DcpMetadata& m) { m.items[0].place.file = 1; }), HasSubstr("file 1 of 1"));
  EXPECT_THAT(refusal_to_write([](DcpMetadata& m) { m.tensors[0].chunks[1].box.offset = {1}; }),
              HasSubstr("overlap"));
  EXPECT_THAT(refusal_to_write([](DcpMetadata& m) { m.tensors[0].chunks[1].box.extent = {1}; }),
              HasSubstr("3 of 4 elements"));
  EXPECT_THAT(refusal_to_write([](DcpMetadata& m) { m.tensors[0].chunks[1].box.offset = {3}; }),
              HasSubstr("does not lie in the shape (4)"));
  EXPECT_THAT(refusal_to_write([](DcpMetadata& m) { m.tensors[0].chunks.push_back(m.tensors[0].chunks[0]); }),
              HasSubstr("more elements than the shape"));
  EXPECT_THAT(refusal_to_write([](DcpMetadata& m) { m.tensors[0].chunks[0].place.bytes = 7; }),
              HasSubstr("does not fit into its 7 bytes"));
}

std::string altered(std::string bytes, std::string_view from, std::string_view to) {
  const std::size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return bytes.replace(at, from.size(), to);
}

/// The refusal of the small checkpoint's metadata after one text in it was replaced by another as long.
std::string refusal_after(std::string_view from, std::string_view to) {
  const Bytes bytes = encode_dcp_metadata(small()).value();
  const auto metadata = parse_dcp_metadata(bytes_of(altered(std::string(text_of(bytes)), from, to)));
  EXPECT_FALSE(metadata.has_value());
  EXPECT_EQ(metadata ? Errc::internal : metadata.error().code, Errc::corrupt);
  return metadata ? "" : metadata.error().message;
}

TEST(DcpMetadata, RefusesMetadataThatContradictsItself) {
  EXPECT_THAT(refusal_after("__0_0.distcp", "../../../etc"), HasSubstr("not a file name below"));
  EXPECT_THAT(refusal_after("__0_0.distcp", "/_0_0.distcp"), HasSubstr("not a file name below"));
  EXPECT_THAT(refusal_after("__0_0.distcp", std::string_view("\0_0_0.distcp", 12)),
              HasSubstr("not a file name"));
  EXPECT_THAT(refusal_after("Metadata", "metadata"),
              HasSubstr("found torch.distributed.checkpoint.metadata.metadata"));
  EXPECT_THAT(refusal_after("storage_data", "storage_dat_"), HasSubstr("has no attribute 'storage_data'"));
  EXPECT_THAT(refusal_after("_StorageInfo", "_StorageInf_"), HasSubstr("not MetadataIndex to _StorageInfo"));
  EXPECT_THAT(refusal_after("\x8c\x05sizes", "\x8c\x05SIZES"), HasSubstr("has no attribute 'sizes'"));
  EXPECT_THAT(refusal_after("\x8c\x03"
                            "fqn",
                            "\x8c\x03"
                            "FQN"),
              HasSubstr("has no attribute 'fqn'"));
  EXPECT_THAT(refusal_after("\x8c\x06length\x94K\x08", "\x8c\x06length\x94K\x07"),
              HasSubstr("does not fit into its 7 bytes"));
  EXPECT_THAT(refusal_after("\x8c\x06length\x94K", "\x8c\x06length\x94N"), HasSubstr("pickle"));
}

TEST(DcpMetadata, HasElementsOfOtherDtypesAsBytes) {
  auto carried = small();
  auto& tensor = carried.tensors[0];
  tensor.path = {"w"};
  carried.items[0].path = {"step"};
  const auto plain = tensor;
  tensor.dtype = DType::u8;
  tensor.carried = "complex32";  // of as many bytes as f32
  tensor.shape.push_back(4);
  for (auto& chunk : tensor.chunks) {
    chunk.box.offset.push_back(0);
    chunk.box.extent.push_back(4);
  }

  const auto bytes = encode_dcp_metadata(carried).value();

  EXPECT_EQ(parse_dcp_metadata(bytes).value(), carried);
  const auto as_f32 = altered(std::string(text_of(bytes)),
                              "\x8c\x09"
                              "complex32",
                              "\x8c\x07"
                              "float32");
  EXPECT_EQ(parse_dcp_metadata(bytes_of(as_f32)).value().tensors[0], plain);

  tensor.chunks[0].box.extent.back() = 2;  // a part of an element
  EXPECT_EQ(encode_dcp_metadata(carried).error().code, Errc::invalid_argument);
  tensor = plain;
  tensor.carried = "quint4x2";
  EXPECT_EQ(encode_dcp_metadata(carried).error().code, Errc::invalid_argument);
}

TEST(DcpMetadata, NamesWhatItCannotReadAndReadsTheRest) {
  const Bytes bytes = encode_dcp_metadata(small()).value();
  const std::string text(text_of(bytes));

  const auto packed = parse_dcp_metadata(bytes_of(altered(text,
                                                          "\x8c\x07"
                                                          "float32",
                                                          "\x8c\x08"
                                                          "quint4x2")))
                          .value();
  const auto unknown =
      parse_dcp_metadata(bytes_of(altered(text, "BytesStorageMetadata", "OtherStorageMetadata"))).value();

  EXPECT_TRUE(packed.tensors.empty());
  EXPECT_EQ(named(packed.items, "step").place, small().items[0].place);
  ASSERT_EQ(packed.skipped.size(), 1U);
  EXPECT_EQ(packed.skipped[0].key, "w");
  EXPECT_THAT(packed.skipped[0].reason, HasSubstr("torch.quint4x2 is not a dtype"));
  EXPECT_THAT(unknown.skipped[0].reason, HasSubstr("OtherStorageMetadata"));
}

TEST(DcpMetadata, RefusesEveryPrefixOfMetadata) {
  const Bytes bytes = golden_bytes("mesh/.metadata");

  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(parse_dcp_metadata(std::span(bytes).first(length)).has_value()) << length;
  }
}

TEST(DcpMetadata, NamesFilesAsPyTorchDoes) {
  EXPECT_EQ(dcp_file_name(3, 1), "__3_1.distcp");
}

}  // namespace
}  // namespace troupe::core
