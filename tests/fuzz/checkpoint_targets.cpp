#include <span>
#include <string>
#include <string_view>

#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/disregard.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {

int fuzz_safetensors(const std::uint8_t* data, std::size_t size) {
  const auto header = core::parse_safetensors_header(std::as_bytes(std::span(data, size)), size);
  if (!header) return 0;
  core::disregard(core::sharding_offsets(*header), "either is right, a crash is not");
  auto entries = header->entries;
  const std::string text = core::safetensors_header(entries, header->metadata);
  const std::uint64_t file_bytes = entries.empty() ? text.size() : entries.back().end;
  const auto again = core::parse_safetensors_header(std::as_bytes(std::span(text)), file_bytes);
  CHECK(again.has_value() && again->entries == entries && again->metadata == header->metadata,
        "a header is the same after writing and reading");
  return 0;
}

int fuzz_manifest(const std::uint8_t* data, std::size_t size) {
  // Nearly every change of a manifest is told by its hash; what is behind that check needs a right one.
  constexpr std::string_view kHash = "\"hash\":\"";
  std::string text(reinterpret_cast<const char*>(data), size);
  const std::size_t at = text.rfind(kHash);
  if (at != std::string::npos) {
    text.resize(at);
    const std::string hash = core::hex64(core::hash64(text));
    text += std::string(kHash) + hash + "\"}\n";
  }
  const auto manifest = core::parse_manifest(text);
  if (!manifest) return 0;
  const std::string written = core::to_text(*manifest);
  const auto again = core::parse_manifest(written);
  CHECK(again.has_value() && *again == *manifest, "a manifest is the same after writing and reading");
  return 0;
}

}  // namespace troupe::fuzz
