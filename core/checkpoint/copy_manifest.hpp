#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/cliques.hpp"
#include "core/checkpoint/save_plan.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::core {

inline constexpr std::string_view kCopyPrefix = "rank_";
inline constexpr std::string_view kUnfinishedCopy = ".tmp";

/// "step_00000200-0123456789abcdef": a local save in a rank's storage, with a directory per copy.
std::string directory_of(const CopyName& name);
/// "step_00000200-0123456789abcdef/rank_00003", and with ".tmp" while it is not whole.
std::string path_of(const CopyName& name, Rank owner);
std::string unfinished_path_of(const CopyName& name, Rank owner);

/// Bytes of a file that have one hash: from the end of the segment before, or from the beginning.
struct CopySegment {
  std::uint64_t end = 0;
  std::uint64_t hash = 0;

  friend bool operator==(const CopySegment&, const CopySegment&) = default;
};

struct CopyFile {
  std::string name;                   ///< in the copy's directory
  std::vector<CopySegment> segments;  ///< the header, then a segment per shard

  std::uint64_t bytes() const { return segments.empty() ? 0 : segments.back().end; }
  friend bool operator==(const CopyFile&, const CopyFile&) = default;
};

/// What is known about one rank's part of a save of the local tier. Unlike a checkpoint's manifest it covers
/// no tensor: a copy means something only to a job of the same structure.
struct CopyManifest {
  CopyName name;
  Rank owner{};
  WorldSize world{};
  std::uint64_t structure_hash = 0;  ///< hash64 of the text of the owner's SaveStructure
  std::string topology = "null";     ///< JSON of a Value, on one line; of rank 0's copies
  std::string common = "null";       ///< as `topology`
  std::vector<CopyFile> files;

  std::uint64_t file_bytes() const;
  friend bool operator==(const CopyManifest&, const CopyManifest&) = default;
};

inline constexpr int kCopyVersion = 1;
/// What a copy's manifest may have at most.
inline constexpr std::uint64_t kMaxCopyManifestBytes = std::uint64_t{64} << 20;

/// The files of a rank that writes all its pieces, whose hashes come in the order of plan_files.
std::vector<CopyFile> copy_files(const std::vector<PlannedFile>& files, const WrittenShards& written);

/// The bytes of a copy's manifest.json: JSON, the last line holds the hash of all bytes before it.
std::string to_text(const CopyManifest& manifest);

/// Errc::corrupt for text that is no manifest of a copy, is cut short or altered, or whose files would leave
/// their directory; Errc::mismatch for another version.
Result<CopyManifest> parse_copy_manifest(std::string_view text);

}  // namespace troupe::core
