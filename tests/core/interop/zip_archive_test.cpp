#include "core/interop/zip_archive.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "tests/core/interop/golden.hpp"

namespace troupe::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Bytes = std::vector<std::byte>;

std::string refusal_of_zip(std::span<const std::byte> bytes) {
  const auto result = ZipArchive::open(bytes);
  EXPECT_FALSE(result.has_value());
  EXPECT_EQ(result ? Errc::internal : result.error().code, Errc::corrupt);
  return result ? "" : result.error().message;
}

Bytes written_zip(const std::vector<std::pair<std::string, std::string>>& files,
                  const std::string& folder = "a") {
  ZipWriter zip(folder);
  for (const auto& [name, text] : files) zip.add(name, text);
  zip.finish();
  return zip.take();
}

/// Where a pattern begins for the n-th time.
std::size_t place_of(const Bytes& bytes, std::string_view pattern, int nth = 0) {
  std::size_t at = text_of(bytes).find(pattern);
  while (nth-- > 0) at = text_of(bytes).find(pattern, at + 1);
  EXPECT_NE(at, std::string_view::npos);
  return at;
}

Bytes patched(Bytes bytes, std::size_t at, std::initializer_list<int> values) {
  for (const int value : values) bytes.at(at++) = static_cast<std::byte>(value);
  return bytes;
}

constexpr std::string_view kCentral = "PK\x01\x02";
constexpr std::string_view kLocal = "PK\x03\x04";
constexpr std::string_view kEnd64 = "PK\x06\x06";
constexpr std::string_view kLocator = "PK\x06\x07";

TEST(ZipArchive, ReadsWhatTorchSaves) {
  const Bytes bytes = golden_bytes("archives/tensor.pt");

  const auto archive = ZipArchive::open(bytes).value();

  EXPECT_EQ(archive.folder(), "tensor");
  std::vector<std::string_view> names;
  for (const ZipEntry& entry : archive.entries()) names.push_back(entry.name);
  EXPECT_THAT(names, ElementsAre("data.pkl", ".format_version", ".storage_alignment", "byteorder", "data/0",
                                 "version", ".data/serialization_id"));
  EXPECT_EQ(text_of(archive.read("byteorder").value()), "little");
  EXPECT_EQ(text_of(archive.read("version").value()), "3\n");
  for (const ZipEntry& entry : archive.entries()) {
    EXPECT_EQ(entry.offset % kZipAlignment, 0U) << entry.name;
    EXPECT_TRUE(archive.check_crc(entry).has_value()) << entry.name;
  }
  EXPECT_FALSE(archive.read("data/1").has_value());
}

TEST(ZipArchive, WritesTheBytesOfTorchSave) {
  const Bytes bytes = golden_bytes("archives/bf16_rank4.pt");
  const auto archive = ZipArchive::open(bytes).value();
  ZipWriter zip{std::string(archive.folder())};

  for (const ZipEntry& entry : archive.entries()) zip.add(entry.name, archive.data(entry));
  zip.finish();

  EXPECT_EQ(hex_of(zip.take()), hex_of(bytes));
}

TEST(ZipArchive, StreamsAnEntryWhoseBytesComeLater) {
  const auto data = bytes_of(std::string(1000, 'x'));
  const Bytes whole = written_zip({{"first", "1"}, {"data", std::string(1000, 'x')}, {"last", "2"}});
  ZipWriter zip("a");

  zip.add("first", "1");
  zip.begin("data", data.size());
  Bytes streamed = zip.take();
  streamed.insert(streamed.end(), data.begin(), data.end());
  EXPECT_EQ(zip.position(), streamed.size());
  zip.end(crc32(data));
  zip.add("last", "2");
  zip.finish();
  const Bytes tail = zip.take();
  streamed.insert(streamed.end(), tail.begin(), tail.end());

  EXPECT_EQ(streamed, whole);
}

TEST(ZipArchive, SaysLargeSizesAndPlacesInZip64Fields) {
  constexpr std::uint64_t kLarge = std::uint64_t{5} << 30;
  ZipWriter zip("a");
  zip.begin("large", kLarge);
  const std::size_t head = zip.take().size();
  zip.end(0x1234);
  zip.add("far", "y");
  zip.finish();
  const Bytes tail = zip.take();

  // The record of "far": sizes as they are, its place in an extra field of 8 bytes.
  const std::size_t far = place_of(tail, kCentral, 1);
  EXPECT_EQ(hex_of(std::span(tail).subspan(far + 20, 8)), "0100000001000000");
  EXPECT_EQ(hex_of(std::span(tail).subspan(far + 42, 4)), "ffffffff");
  const std::uint64_t place = head + kLarge + 24;  // behind a descriptor of 8-byte sizes
  EXPECT_EQ(place, 0x1'4000'0040U + 24);
  EXPECT_EQ(hex_of(std::span(tail).subspan(far + 46 + 5, 12)), "010008005800004001000000");
  // The record of "large": both sizes in an extra field of 16 bytes.
  const std::size_t large = place_of(tail, kCentral);
  EXPECT_EQ(hex_of(std::span(tail).subspan(large + 46 + 7, 20)), "0100100000000040010000000000004001000000");
}

TEST(ZipArchive, ReadsSizesFromZip64Fields) {
  Bytes bytes = written_zip({{"x", "data"}});
  // The same record with its sizes and place in an extra field.
  const std::size_t central = place_of(bytes, kCentral);
  Bytes extra = bytes_of_hex("01001800040000000000000004000000000000000000000000000000");
  bytes = patched(bytes, central + 20, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff});
  bytes = patched(bytes, central + 30, {28, 0});
  bytes = patched(bytes, central + 42, {0xff, 0xff, 0xff, 0xff});
  bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(central + 46 + 3), extra.begin(), extra.end());
  const std::size_t end64 = place_of(bytes, kEnd64);
  bytes = patched(bytes, end64 + 40, {46 + 3 + 28});
  bytes = patched(bytes, place_of(bytes, kLocator) + 8,
                  {static_cast<int>(end64 & 0xff), static_cast<int>(end64 >> 8)});

  const auto archive = ZipArchive::open(bytes);

  ASSERT_TRUE(archive.has_value()) << archive.error().message;
  EXPECT_EQ(text_of(archive->read("x").value()), "data");
}

TEST(ZipArchive, ReadsArchivesWithoutZip64AndWithAComment) {
  Bytes bytes = written_zip({{"x", "data"}});
  const std::size_t end64 = place_of(bytes, kEnd64);
  bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(end64),
              bytes.begin() + static_cast<std::ptrdiff_t>(place_of(bytes, "PK\x05\x06")));
  bytes = patched(bytes, bytes.size() - 2, {5, 0});
  for (const char letter : {'h', 'e', 'l', 'l', 'o'}) bytes.push_back(static_cast<std::byte>(letter));

  EXPECT_EQ(text_of(ZipArchive::open(bytes).value().read("x").value()), "data");
}

TEST(ZipArchive, RefusesEveryPrefix) {
  const Bytes bytes = golden_bytes("archives/tensor.pt");

  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(ZipArchive::open(std::span(bytes).first(length)).has_value()) << length;
  }
}

TEST(ZipArchive, RefusesCompressedAndEncryptedEntries) {
  const Bytes bytes = written_zip({{"x", "data"}});
  const std::size_t central = place_of(bytes, kCentral);

  EXPECT_THAT(refusal_of_zip(patched(bytes, central + 10, {8})),
              HasSubstr("must be stored plainly; method 8"));
  EXPECT_THAT(refusal_of_zip(patched(bytes, central + 8, {9})), HasSubstr("encrypted"));
  EXPECT_THAT(refusal_of_zip(patched(bytes, central + 20, {3})), HasSubstr("3 bytes for 4"));
}

TEST(ZipArchive, RefusesNamesOutsideItsOneFolder) {
  for (const std::string name : {"../x", "y/../../x", "x/..", "a\\x", ""}) {
    EXPECT_THAT(refusal_of_zip(written_zip({{name, "1"}})),
                HasSubstr("does not lie in the archive's one folder"))
        << name;
  }
  EXPECT_THAT(refusal_of_zip(written_zip({{"x", "1"}}, "")), HasSubstr("one folder"));
  EXPECT_THAT(refusal_of_zip(written_zip({{"x", "1"}}, "..")), HasSubstr("one folder"));
  Bytes other = written_zip({{"x", "1"}, {"y", "2"}});
  other = patched(other, place_of(other, "a/y"), {'b'});
  other = patched(other, place_of(other, "a/y"), {'b'});
  EXPECT_THAT(refusal_of_zip(other), HasSubstr("'b/y' does not lie in the archive's one folder 'a'"));
  EXPECT_THAT(refusal_of_zip(written_zip({{"x", "1"}, {"x", "2"}})), HasSubstr("'x' is there twice"));
  EXPECT_THAT(refusal_of_zip(written_zip({{"\xff", "1"}})), HasSubstr("not UTF-8"));
}

TEST(ZipArchive, RefusesPlacesThatContradictEachOther) {
  const Bytes bytes = written_zip({{"x", "data"}, {"y", "more"}});
  const std::size_t first = place_of(bytes, kCentral);
  const std::size_t second = place_of(bytes, kCentral, 1);
  const std::size_t end64 = place_of(bytes, kEnd64);

  EXPECT_THAT(refusal_of_zip(patched(bytes, first + 20, {0xff, 0xff, 0, 0, 0xff, 0xff})),
              HasSubstr("runs into the directory"));
  EXPECT_THAT(refusal_of_zip(patched(bytes, first + 20, {0x50, 0, 0, 0, 0x50, 0, 0, 0})),
              HasSubstr("two entries overlap"));
  EXPECT_THAT(refusal_of_zip(patched(bytes, first + 42, {1})), HasSubstr("has no header at byte 1"));
  EXPECT_THAT(refusal_of_zip(patched(bytes, second + 42, {0, 0})), HasSubstr("another name in its header"));
  EXPECT_THAT(refusal_of_zip(patched(bytes, second + 42, {0xff, 0xff, 0xff, 0x7f})),
              HasSubstr("has no header"));
  EXPECT_THAT(refusal_of_zip(patched(bytes, first, {'Q'})), HasSubstr("no directory record"));
  EXPECT_THAT(refusal_of_zip(patched(bytes, second + 28, {0xff})), HasSubstr("cut short"));
  EXPECT_THAT(refusal_of_zip(patched(bytes, end64 + 32, {3})), HasSubstr("3 entries do not fit"));
  EXPECT_THAT(refusal_of_zip(patched(bytes, end64 + 48, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})),
              HasSubstr("leaves the archive"));
  EXPECT_THAT(refusal_of_zip(patched(bytes, place_of(bytes, kLocator) + 8, {0})),
              HasSubstr("no ZIP64 end record"));
  EXPECT_THAT(refusal_of_zip(patched(bytes, place_of(bytes, kLocal), {'Q'})), HasSubstr("has no header"));
}

TEST(ZipArchive, TellsAlteredDataByTheirCrc) {
  const Bytes bytes = written_zip({{"x", "data"}});
  const Bytes altered = patched(bytes, place_of(bytes, "data"), {'D'});
  const Bytes without = patched(altered, place_of(altered, kCentral) + 16, {0, 0, 0, 0});

  const auto archive = ZipArchive::open(altered).value();
  const auto unchecked = ZipArchive::open(without).value();

  EXPECT_THAT(archive.check_crc(archive.entries()[0]).error().message, HasSubstr("the bytes were altered"));
  EXPECT_TRUE(unchecked.check_crc(unchecked.entries()[0]).has_value());
}

RC_GTEST_PROP(ZipArchive, ReturnsWhatWasWritten, (std::map<std::uint16_t, std::vector<std::uint8_t>> files)) {
  ZipWriter zip("folder");
  for (const auto& [name, data] : files) zip.add(std::to_string(name), std::as_bytes(std::span(data)));
  zip.finish();
  const Bytes bytes = zip.take();

  const auto archive = ZipArchive::open(bytes);

  RC_ASSERT(archive.has_value());
  RC_ASSERT(archive->entries().size() == files.size());
  for (const auto& [name, data] : files) {
    const auto read = archive->read(std::to_string(name));
    RC_ASSERT(read.has_value());
    RC_ASSERT(std::ranges::equal(*read, std::as_bytes(std::span(data))));
    RC_ASSERT(archive->check_crc(*archive->find(std::to_string(name))).has_value());
  }
}

}  // namespace
}  // namespace troupe::core
