#include "core/checkpoint/copy_manifest.hpp"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "core/checkpoint/json_cursor.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/sealed_text.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/values/json_text.hpp"

namespace troupe::core {

namespace {

constexpr std::string_view kBegin = "{\"format\":\"troupe-copy\",\"version\":";

template <class... Args>
tl::unexpected<Error> invalid(fmt::format_string<Args...> format, Args&&... args) {
  return fail(Errc::corrupt, "the copy's manifest is not valid: {}",
              fmt::format(format, std::forward<Args>(args)...));
}

Result<void> check_version(std::string_view text) {
  JsonCursor cursor(text);
  cursor.expect(kBegin);
  const auto version = cursor.number();
  if (!cursor.is_good()) return invalid("it does not begin with its format");
  if (version == static_cast<std::uint64_t>(kCopyVersion)) return {};
  return fail(Errc::mismatch, "the copy has format version {}, this program reads version {}", version,
              kCopyVersion);
}

CopyFile read_file(JsonCursor& cursor) {
  CopyFile file;
  cursor.expect("{\"name\":");
  file.name = cursor.string();
  cursor.expect(",\"segments\":[");
  do {
    CopySegment segment;
    cursor.expect("[");
    segment.end = cursor.number();
    cursor.expect(",");
    segment.hash = cursor.hash();
    cursor.expect("]");
    if (segment.end <= file.bytes()) cursor.complain("expected a segment that ends after the one before");
    file.segments.push_back(segment);
  } while (cursor.skip(","));
  cursor.expect("]}");
  return file;
}

CopyManifest read_manifest(JsonCursor& cursor) {
  CopyManifest manifest;
  cursor.expect(fmt::format("{}{},", kBegin, kCopyVersion));
  cursor.expect("\n\"step\":");
  manifest.name.step = StepCount{static_cast<std::int64_t>(cursor.number(INT64_MAX))};
  cursor.expect(",\"save\":");
  manifest.name.save = cursor.hash();
  cursor.expect(",\"owner\":");
  manifest.owner = Rank{static_cast<std::int32_t>(cursor.number(INT32_MAX))};
  cursor.expect(",\"world\":");
  manifest.world = WorldSize{static_cast<std::int32_t>(cursor.number(INT32_MAX))};
  cursor.expect(",\n\"layout\":");
  manifest.layout = cursor.value();
  cursor.expect(",\n\"topology\":");
  manifest.topology = cursor.value();
  cursor.expect(",\n\"common\":");
  manifest.common = cursor.value();
  cursor.expect(",\n\"files\":[");
  if (!cursor.skip("],\n")) {
    do {
      cursor.expect("\n");
      manifest.files.push_back(read_file(cursor));
    } while (cursor.skip(","));
    cursor.expect("\n],\n");
  }
  cursor.expect_end();
  return manifest;
}

Result<void> check_names(const std::vector<CopyFile>& files) {
  std::set<std::string_view> names{kManifestName};
  for (const auto& file : files) {
    const bool leaves = file.name.empty() || file.name == "." || file.name == ".." ||
                        file.name.find_first_of(std::string_view("/\0", 2)) != std::string::npos;
    if (leaves) return invalid("'{}' is not the name of a file in this directory", file.name);
    if (!names.insert(file.name).second) return invalid("file '{}' is listed twice", file.name);
  }
  return {};
}

}  // namespace

std::uint64_t CopyManifest::file_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& file : files) bytes += file.bytes();
  return bytes;
}

std::vector<CopyFile> copy_files(const std::vector<PlannedFile>& files, const WrittenShards& written) {
  std::vector<CopyFile> copies;
  std::size_t next = 0;
  for (const auto& file : files) {
    CopyFile copy{file.name, {{file.header.size(), hash64(file.header)}}};
    for (const auto& shard : file.shards) {
      CHECK(next < written.hashes.size(), "a hash comes with every shard that was written");
      copy.segments.push_back({shard.end, written.hashes[next++]});
    }
    copies.push_back(std::move(copy));
  }
  return copies;
}

std::string to_text(const CopyManifest& manifest) {
  std::string text = fmt::format("{}{},\n\"step\":{},\"save\":\"{}\",\"owner\":{},\"world\":{},", kBegin,
                                 kCopyVersion, manifest.name.step.value, hex64(manifest.name.save),
                                 manifest.owner.value, manifest.world.value);
  text += fmt::format("\n\"layout\":{},\n\"topology\":{},\n\"common\":{},\n\"files\":[", manifest.layout,
                      manifest.topology, manifest.common);
  const char* before = "\n";
  for (const auto& file : manifest.files) {
    text += std::exchange(before, ",\n");
    text += "{\"name\":";
    append_string(text, file.name);
    text += ",\"segments\":";
    char opening = '[';
    for (const auto& segment : file.segments)
      text += fmt::format("{}[{},\"{}\"]", std::exchange(opening, ','), segment.end, hex64(segment.hash));
    text += "]}";
  }
  text += manifest.files.empty() ? "],\n" : "\n],\n";
  return seal(std::move(text));
}

Result<CopyManifest> parse_copy_manifest(std::string_view text) {
  TRY(check_version(text));
  JsonCursor cursor(TRY(unseal(text, "the copy's manifest")));
  auto manifest = read_manifest(cursor);
  if (!cursor.is_good()) return invalid("{}", cursor.complaint());
  TRY(check_names(manifest.files));
  // Sums of sizes that exceed 64 bits would wrap around.
  std::uint64_t bytes = 0;
  for (const auto& file : manifest.files) {
    if (__builtin_add_overflow(bytes, file.bytes(), &bytes)) return invalid("its files are too large");
  }
  return manifest;
}

std::string directory_of(const CopyName& name) {
  return fmt::format("{}-{}", checkpoint_name(name.step), hex64(name.save));
}

std::string path_of(const CopyName& name, Rank owner) {
  return fmt::format("{}/{}{:05}", directory_of(name), kCopyPrefix, owner.value);
}

std::string unfinished_path_of(const CopyName& name, Rank owner) {
  return fmt::format("{}{}", path_of(name, owner), kUnfinishedCopy);
}

}  // namespace troupe::core
