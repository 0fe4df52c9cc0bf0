#include "core/interop/torch_archive.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/interop/pickle_writer.hpp"
#include "tests/core/interop/golden.hpp"

namespace troupe::core {
namespace {

using ::testing::HasSubstr;

using Bytes = std::vector<std::byte>;

std::string refusal_of_torch_archive(const Result<TorchTensor>& result, Errc code = Errc::corrupt) {
  EXPECT_FALSE(result.has_value());
  EXPECT_EQ(result ? Errc::internal : result.error().code, code);
  return result ? "" : result.error().message;
}

struct GoldenArchive {
  const char* name;
  DType dtype;
  Shape shape;
  const char* elements;
};

// The elements are those that make_dcp.py saves, little-endian.
TEST(TorchArchive, ReadsTensorsOfTorchSave) {
  const std::vector<GoldenArchive> goldens{
      {"tensor",
       DType::f32,
       {2, 3},
       "000000000000803f000000400000404000008040"
       "0000a040"},
      {"parameter", DType::f32, {2, 3}, "000000000000803f0000004000004040000080400000a040"},
      {"view", DType::f32, {3}, "00004040000080400000a040"},
      {"scalar", DType::f64, {}, "000000000000f8bf"},
      {"fp8", DType::f8_e4m3, {4}, "00384044"},
      {"empty", DType::f32, {2, 0, 3}, ""},
      {"bf16_rank4",
       DType::bf16,
       {1, 2, 3, 4},
       "0000803f00404040804 0a040c040e04000411041204130414041504160417041"
       "804188419041984 1a041a841b041b841"},
  };
  for (const GoldenArchive& golden : goldens) {
    const Bytes bytes = golden_bytes(std::string("archives/") + golden.name + ".pt");
    std::string elements(golden.elements);
    std::erase(elements, ' ');

    const auto tensor = parse_torch_tensor(bytes);

    ASSERT_TRUE(tensor.has_value()) << golden.name << ": " << tensor.error().message;
    EXPECT_EQ(tensor->dtype, golden.dtype) << golden.name;
    EXPECT_EQ(tensor->shape, golden.shape) << golden.name;
    const auto data = std::span(bytes).subspan(tensor->offset, tensor->bytes);
    EXPECT_EQ(hex_of(data), elements) << golden.name;
    // Only a tensor that is all of its storage has the storage's CRC.
    EXPECT_EQ(tensor->crc.has_value(), golden.name != std::string("view") && !data.empty()) << golden.name;
    EXPECT_EQ(tensor->crc.value_or(crc32(data)), crc32(data)) << golden.name;
  }
}

TEST(TorchArchive, SaysHowElementsThatLieApartFollowEachOther) {
  const Bytes bytes = golden_bytes("archives/transposed.pt");

  const auto tensor = parse_torch_tensor(bytes).value();

  EXPECT_EQ(tensor.shape, (Shape{3, 2}));
  EXPECT_EQ(tensor.strides, (Shape{1, 3}));
  EXPECT_EQ(tensor.bytes, 24U);
  EXPECT_EQ(tensor.stored_bytes, 24U);
  const auto stored = std::span(bytes).subspan(tensor.offset, tensor.stored_bytes);
  EXPECT_EQ(hex_of(stored), "000000000000803f0000004000004040000080400000a040");
  EXPECT_EQ(tensor.crc, crc32(stored));
}

TEST(TorchArchive, SaysWhyItRefusesATensor) {
  const Bytes complex = golden_bytes("archives/complex.pt");
  const Bytes object = golden_bytes("archives/object.pt");
  const Bytes dict = golden_bytes("archives/tensors_in_dict.pt");

  EXPECT_THAT(refusal_of_torch_archive(parse_torch_tensor(complex), Errc::unavailable),
              HasSubstr("torch.complex64 is not"));
  EXPECT_THAT(refusal_of_torch_archive(parse_torch_tensor(object)),
              HasSubstr("expected a tensor, found dict"));
  EXPECT_THAT(refusal_of_torch_archive(parse_torch_tensor(dict)), HasSubstr("expected a tensor, found dict"));
}

TEST(TorchArchive, CarriesElementsOfOtherDtypesAsBytes) {
  const Bytes complex = golden_bytes("archives/complex.pt");

  const auto tensor = parse_torch_tensor(complex, ForeignTypes::carry).value();

  EXPECT_EQ(tensor.carried, "complex64");
  EXPECT_EQ(tensor.dtype, DType::u8);
  ASSERT_FALSE(tensor.shape.empty());
  EXPECT_EQ(tensor.shape.back(), 8);
  EXPECT_EQ(tensor.bytes, static_cast<std::uint64_t>(elements_of(tensor.shape)));
}

// Strides count elements of PyTorch there, and bytes here.
TEST(TorchArchive, WritesOtherDtypesAsItReadsThem) {
  for (const auto* name : {"complex64", "complex128", "complex32", "float8_e8m0fnu", "float4_e2m1fn_x2"}) {
    const auto dtype = torch_dtype_from(name).value();
    const auto writer = TorchTensorWriter::create(dtype, {3, 2}).value();
    Bytes bytes = writer.head();
    const auto begin = bytes.size();
    for (std::uint64_t i = 0; i < writer.data_bytes(); ++i) bytes.push_back(static_cast<std::byte>(i));
    const auto tail = writer.tail(crc32(std::span(bytes).subspan(begin)));
    bytes.insert(bytes.end(), tail.begin(), tail.end());

    const auto tensor = parse_torch_tensor(bytes, ForeignTypes::carry).value();

    EXPECT_EQ(tensor.carried, name);
    EXPECT_EQ(tensor.offset, begin);
    EXPECT_EQ(tensor.bytes, 6 * dtype.bytes);
    Shape shape{3, 2};
    if (dtype.bytes > 1) shape.push_back(static_cast<std::int64_t>(dtype.bytes));
    EXPECT_EQ(tensor.shape, shape);
    EXPECT_TRUE(tensor.strides.empty());
  }
}

TEST(TorchArchive, FindsTensorsWithinAnObject) {
  const Bytes bytes = golden_bytes("archives/tensors_in_dict.pt");
  const auto archive = TorchArchive::open(bytes).value();
  const PickleNode root = archive.object.root();

  ASSERT_TRUE(root.find("a") && root.find("b"));
  ASSERT_TRUE(is_torch_tensor(*root.find("a")));
  EXPECT_EQ(torch_tensor(archive, *root.find("a")).value(),
            torch_tensor(archive, root.find("b")->item(0)).value());
  EXPECT_FALSE(is_torch_tensor(root));
}

Bytes written_archive(DType dtype, const Shape& shape, std::span<const std::byte> elements) {
  const auto writer = TorchTensorWriter::create(dtype, shape).value();
  EXPECT_EQ(writer.data_bytes(), elements.size());
  Bytes bytes = writer.head();
  bytes.insert(bytes.end(), elements.begin(), elements.end());
  const Bytes tail = writer.tail(crc32(elements));
  bytes.insert(bytes.end(), tail.begin(), tail.end());
  EXPECT_EQ(writer.total_bytes(), bytes.size());
  return bytes;
}

// The files of a checkpoint have archives in the folder "archive", as we write them. Their serialization id
// and its CRC are PyTorch's own business.
TEST(TorchArchive, WritesTheBytesOfTorchSave) {
  const Bytes file = golden_bytes("plain/__0_0.distcp");
  std::size_t compared = 0;
  for (const auto& [dtype, shape] : std::vector<std::pair<DType, Shape>>{{DType::f32, {2, 3}},
                                                                         {DType::f16, {3, 4}},
                                                                         {DType::bf16, {}},
                                                                         {DType::i16, {1, 2, 1, 3, 2}},
                                                                         {DType::f8_e5m2, {12}},
                                                                         {DType::u16, {12}},
                                                                         {DType::boolean, {12}}}) {
    const auto writer = TorchTensorWriter::create(dtype, shape).value();
    const std::string_view head = text_of(writer.head());
    const std::size_t at = text_of(file).find(head);
    ASSERT_NE(at, std::string_view::npos) << name_of(dtype) << " " << to_string(shape);
    const auto theirs = std::span(file).subspan(at, writer.total_bytes());
    const auto elements = theirs.subspan(head.size(), writer.data_bytes());

    Bytes ours = written_archive(dtype, shape, elements);

    const auto archive = ZipArchive::open(theirs).value();
    const ZipEntry id = *archive.find(".data/serialization_id");
    std::copy_n(theirs.begin() + static_cast<std::ptrdiff_t>(id.offset), 40 + 8,
                ours.begin() + static_cast<std::ptrdiff_t>(id.offset));
    const std::size_t crc_at = text_of(ours).rfind("archive/.data/serialization_id") - 46 + 16;
    std::copy_n(theirs.begin() + static_cast<std::ptrdiff_t>(crc_at), 4,
                ours.begin() + static_cast<std::ptrdiff_t>(crc_at));
    EXPECT_EQ(hex_of(ours), hex_of(theirs)) << name_of(dtype);
    ++compared;
  }
  EXPECT_EQ(compared, 7U);
}

TEST(TorchArchive, ReadsWhatItWritesForEveryDtypeAndRank) {
  for (int code = 0; code <= static_cast<int>(DType::boolean); ++code) {
    const auto dtype = static_cast<DType>(code);
    for (const Shape& shape :
         {Shape{}, Shape{0}, Shape{7}, Shape{3, 0}, Shape{2, 3}, Shape{1, 5, 1}, Shape{2, 1, 3, 4, 1}}) {
      Bytes elements(static_cast<std::size_t>(elements_of(shape)) * size_of(dtype), std::byte{0x5a});

      const Bytes bytes = written_archive(dtype, shape, elements);

      const auto tensor = parse_torch_tensor(bytes);
      ASSERT_TRUE(tensor.has_value()) << tensor.error().message;
      EXPECT_EQ(tensor->dtype, dtype);
      EXPECT_EQ(tensor->shape, shape);
      EXPECT_EQ(tensor->offset % kZipAlignment, 0U);
      EXPECT_EQ(tensor->bytes, elements.size());
    }
  }
}

TEST(TorchArchive, KnowsTheSizeOfAMissingTensor) {
  const auto writer = TorchTensorWriter::create(DType::f32, {1 << 20, 1 << 12}).value();

  EXPECT_EQ(writer.data_bytes(), std::uint64_t{1} << 34);
  EXPECT_EQ(writer.total_bytes(), writer.head().size() + writer.data_bytes() + writer.tail(7).size());
  EXPECT_EQ(TorchTensorWriter::create(DType::f32, {-1}).error().code, Errc::invalid_argument);
  EXPECT_EQ(TorchTensorWriter::create(DType::f64, {std::int64_t{1} << 60}).error().code,
            Errc::invalid_argument);
}

/// What a tensor's pickle may say wrongly; by default all is right.
struct Claims {
  std::string kind = "storage";
  std::string storage = "FloatStorage";
  std::string key = "0";
  std::int64_t size = 6;
  std::int64_t offset = 0;
  Shape shape{2, 3};
  Shape strides{3, 1};
  std::string order = "little";
};

Bytes archive_of(const Claims& claims) {
  PickleWriter pickle(2);
  pickle.global("torch._utils", "_rebuild_tensor_v2");
  pickle.mark();
  pickle.mark();
  pickle.text(claims.kind);
  pickle.global("torch", claims.storage);
  pickle.text(claims.key);
  pickle.text("cpu");
  pickle.integer(claims.size);
  pickle.tuple(5);
  pickle.persistent_id();
  pickle.integer(claims.offset);
  for (const Shape& numbers : {claims.shape, claims.strides}) {
    pickle.mark();
    for (const std::int64_t number : numbers) pickle.integer(number);
    pickle.tuple(4);
  }
  pickle.boolean(false);
  pickle.none();
  pickle.tuple(6);
  pickle.reduce();
  ZipWriter zip("archive");
  zip.add("data.pkl", pickle.finish());
  zip.add("byteorder", claims.order);
  zip.add("data/0", std::string(24, '\0'));
  zip.finish();
  return zip.take();
}

TEST(TorchArchive, TakesStridesThatStayInTheStorage) {
  const auto reach = [](const Shape& shape, const Shape& strides) {
    return parse_torch_tensor(archive_of({.shape = shape, .strides = strides})).value().stored_bytes;
  };

  EXPECT_EQ(reach({3, 2}, {1, 3}), 24U) << "transposed";
  EXPECT_EQ(reach({3, 5}, {0, 0}), 4U) << "expanded";
  EXPECT_EQ(reach({2, 2}, {4, 1}), 24U) << "columns";
  EXPECT_EQ(reach({2, 4}, {2, 1}), 24U) << "overlapping";
  EXPECT_EQ(reach({0, 3}, {9, 9}), 0U) << "empty";
  EXPECT_EQ(reach({1, 6}, {77, 1}), 24U) << "an axis of one element has no stride";
  const std::int64_t large = std::int64_t{1} << 61;
  for (const auto& [shape, strides] : std::vector<std::pair<Shape, Shape>>{
           {{2, 3}, {4, 1}}, {{2}, {6}}, {{large, 2}, {large, 1}}, {{3, 2}, {large, large}}})
    EXPECT_THAT(
        refusal_of_torch_archive(parse_torch_tensor(archive_of({.shape = shape, .strides = strides}))),
        HasSubstr("leave storage 0, which has 6"));
}

TEST(TorchArchive, RefusesATensorThatContradictsItsStorage) {
  EXPECT_TRUE(parse_torch_tensor(archive_of({})).has_value());
  EXPECT_THAT(refusal_of_torch_archive(parse_torch_tensor(archive_of({.kind = "module"}))),
              HasSubstr("not a persistent id"));
  EXPECT_THAT(refusal_of_torch_archive(parse_torch_tensor(archive_of({.key = "../0"}))),
              HasSubstr("must have a number as its key"));
  EXPECT_THAT(refusal_of_torch_archive(parse_torch_tensor(archive_of({.key = "1"}))),
              HasSubstr("has no storage 1"));
  EXPECT_THAT(refusal_of_torch_archive(parse_torch_tensor(archive_of({.size = 5}))),
              HasSubstr("has 24 bytes, not 5 * 4"));
  EXPECT_THAT(refusal_of_torch_archive(parse_torch_tensor(archive_of({.size = -1}))),
              HasSubstr("a size >= 0"));
  EXPECT_THAT(refusal_of_torch_archive(parse_torch_tensor(archive_of({.storage = "DoubleStorage"}))),
              HasSubstr("not 6 * 8"));
  EXPECT_THAT(refusal_of_torch_archive(parse_torch_tensor(archive_of({.offset = 1}))),
              HasSubstr("6 elements from 1 on leave storage 0"));
  EXPECT_THAT(refusal_of_torch_archive(parse_torch_tensor(archive_of({.offset = -1}))),
              HasSubstr("an offset >= 0"));
  EXPECT_THAT(refusal_of_torch_archive(parse_torch_tensor(archive_of({.shape = {7}, .strides = {1}}))),
              HasSubstr("7 elements from 0"));
  EXPECT_THAT(refusal_of_torch_archive(parse_torch_tensor(archive_of({.shape = {-1, 3}}))),
              HasSubstr("not an integer >= 0"));
  EXPECT_THAT(refusal_of_torch_archive(parse_torch_tensor(archive_of({.strides = {1}}))),
              HasSubstr("as many strides as extents"));
  EXPECT_THAT(refusal_of_torch_archive(parse_torch_tensor(archive_of({.order = "big"}))),
              HasSubstr("byte order must be little"));
  const std::int64_t large = std::int64_t{1} << 40;
  EXPECT_THAT(refusal_of_torch_archive(parse_torch_tensor(archive_of({.shape = {large, large}}))),
              HasSubstr("more than 2^62 elements"));
}

}  // namespace
}  // namespace troupe::core
