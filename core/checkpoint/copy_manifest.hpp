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

/// "step_00000200-0123456789abcdef": a local save in a rank's storage, with one directory per copy.
std::string directory_of(const CopyName& name);
/// "step_00000200-0123456789abcdef/rank_00003", followed by ".tmp" while it is incomplete.
std::string path_of(const CopyName& name, Rank owner);
std::string unfinished_path_of(const CopyName& name, Rank owner);

/// Bytes of a file that share one hash: from the end of the previous segment, or from the beginning.
struct CopySegment {
  std::uint64_t end = 0;
  std::uint64_t hash = 0;

  friend bool operator==(const CopySegment&, const CopySegment&) = default;
};

struct CopyFile {
  std::string name;                   ///< in the copy's directory
  std::vector<CopySegment> segments;  ///< the header, then one segment per shard

  std::uint64_t bytes() const { return segments.empty() ? 0 : segments.back().end; }
  friend bool operator==(const CopyFile&, const CopyFile&) = default;
};

/// Describes one rank's part of a save of the local tier.
struct CopyManifest {
  CopyName name;
  Rank owner{};
  WorldSize world{};
  std::string layout = "null";    ///< layout_text() of what it contains; the files hold all of it
  std::string topology = "null";  ///< JSON of a Value, on one line; in rank 0's copies
  std::string common = "null";    ///< like `topology`
  std::vector<CopyFile> files;

  std::uint64_t file_bytes() const;
  friend bool operator==(const CopyManifest&, const CopyManifest&) = default;
};

inline constexpr int kCopyVersion = 2;
/// Size limit of a copy's manifest.
inline constexpr std::uint64_t kMaxCopyManifestBytes = std::uint64_t{64} << 20;

/// The files of a rank that writes all its pieces; the hashes are in the order of plan_files.
std::vector<CopyFile> copy_files(const std::vector<PlannedFile>& files, const WrittenShards& written);

/// The bytes of a copy's manifest.json: JSON whose last line holds the hash of all bytes before it.
std::string to_text(const CopyManifest& manifest);

/// Errc::corrupt for text that is not a copy's manifest, is cut short or altered, or whose files would be
/// outside of their directory; Errc::mismatch for another version.
Result<CopyManifest> parse_copy_manifest(std::string_view text);

}  // namespace troupe::core
