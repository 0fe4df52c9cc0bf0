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

/// One box of a tensor, and where its bytes are: row-major, little-endian, without gaps.
struct ManifestShard {
  Box box;
  std::uint32_t file = 0;   ///< index of Manifest::files
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
  std::string name;         ///< in the checkpoint's directory
  std::uint64_t bytes = 0;  ///< of the whole file
  std::uint64_t header_bytes = 0;
  std::uint64_t header_hash = 0;  ///< of the bytes before the first tensor

  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

/// All that is known about a checkpoint, and the only thing that makes its files one.
struct Manifest {
  StepCount step{};  ///< steps that were over
  std::string save;  ///< 16 hexadecimal digits that no other save has
  Value topology;    ///< how it was saved: world size, strategy, ...; for people and for conversions
  Value common;      ///< the values that all ranks share
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;  ///< by key
  std::vector<ManifestObject> objects;

  std::uint64_t tensor_bytes() const;
  const ManifestTensor* find(std::string_view key) const;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

inline constexpr const char* kManifestFormat = "troupe-checkpoint";
/// Version of the format that this code writes; it reads no other.
inline constexpr int kManifestVersion = 1;
inline constexpr const char* kManifestName = "manifest.json";

/// The bytes of manifest.json: JSON, one line per tensor, file or object; the last line holds the hash of all
/// bytes before it. Equal manifests have equal bytes. Values must be ones that to_json() takes, keys and
/// names UTF-8, and `save` what its comment says, or the text will not parse.
std::string to_text(const Manifest& manifest);

/// Errc::corrupt for text that is no manifest, is cut short or altered (hash), is spelled otherwise than
/// to_text() does, or contradicts itself: boxes that do not cover their tensor exactly, bytes of a file that
/// belong to no shard or to two, byte ranges of another size than their box, file names that leave the
/// directory, objects that come twice. Errc::mismatch for another version.
Result<Manifest> parse_manifest(std::string_view text);

/// The name of a checkpoint's directory: "step_00000200".
std::string checkpoint_name(StepCount step);

/// 16 hexadecimal digits, as hashes and save ids are written.
std::string hex64(std::uint64_t value);

}  // namespace troupe::core
