#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/boxes/box.hpp"
#include "core/checkpoint/manifest_object.hpp"
#include "core/dtype.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::core {

/// One box of a tensor, and the place of its bytes: row-major, little-endian, without gaps.
struct ManifestShard {
  Box box;
  std::uint32_t file = 0;   ///< index in Manifest::files
  std::uint64_t begin = 0;  ///< bytes from the beginning of the file
  std::uint64_t end = 0;
  std::uint64_t hash = 0;  ///< hash64 of the bytes

  std::uint64_t bytes() const { return end - begin; }
  friend bool operator==(const ManifestShard&, const ManifestShard&) = default;
};

/// A named global tensor; its shards cover it exactly.
struct ManifestTensor {
  std::string key;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<ManifestShard> shards;

  friend bool operator==(const ManifestTensor&, const ManifestTensor&) = default;
};

struct ManifestFile {
  std::string name;         ///< relative to the checkpoint's directory
  std::uint64_t bytes = 0;  ///< of the whole file
  std::uint64_t header_bytes = 0;
  std::uint64_t header_hash = 0;  ///< of the bytes before the first tensor

  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

/// Everything known about a checkpoint; without it the files are not a checkpoint.
struct Manifest {
  StepCount step{};  ///< steps completed
  std::string save;  ///< 16 hexadecimal digits, different for every save
  Value topology;    ///< how it was saved: world size, strategy, ...; for people and for conversions
  Value common;      ///< the values shared by all ranks
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;  ///< sorted by key
  std::vector<ManifestObject> objects;

  std::uint64_t tensor_bytes() const;
  const ManifestTensor* find(std::string_view key) const;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

inline constexpr const char* kManifestFormat = "troupe-checkpoint";
/// Version of the format that this code writes; it reads no other version.
inline constexpr int kManifestVersion = 1;
inline constexpr const char* kManifestName = "manifest.json";

/// The bytes of manifest.json: JSON, one line per tensor, file or object; the last line holds the hash of all
/// bytes before it. Equal manifests give equal bytes. Values must be accepted by to_json(), keys and names
/// must be UTF-8, and `save` must be as its comment says; otherwise the text will not parse.
std::string to_text(const Manifest& manifest);

/// Errc::corrupt for text that is not a manifest, is cut short or altered (hash), is spelled differently from
/// to_text(), or contradicts itself: boxes that do not cover their tensor exactly, bytes of a file that
/// belong to no shard or to two, byte ranges whose size differs from their box's, file names outside of the
/// directory, duplicate objects. Errc::mismatch for another version.
Result<Manifest> parse_manifest(std::string_view text);

/// What parse_manifest() requires of objects; Errc::corrupt names one that lies outside of its grid, comes
/// twice at a cell, or has two grids.
Result<void> check_objects(const std::vector<ManifestObject>& objects);

/// The name of a checkpoint's directory: "step_00000200".
std::string checkpoint_name(StepCount step);

/// 16 hexadecimal digits, the form in which hashes and save ids are written.
std::string hex64(std::uint64_t value);

}  // namespace troupe::core
