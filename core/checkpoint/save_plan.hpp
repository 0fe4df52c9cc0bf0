#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/boxes/box.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/dtype.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// A box of a tensor that is contiguous in a rank's memory.
struct SavePiece {
  std::uint32_t tensor = 0;  ///< index in SaveStructure::tensors
  Box box;

  friend bool operator==(const SavePiece&, const SavePiece&) = default;
};

/// What a rank could write, without the data. Unchanged as long as its tensors and their placement are.
struct SaveStructure {
  struct Tensor {
    std::string key;
    DType dtype = DType::f32;
    Shape shape;
    /// Ranks with different numbers above 0 keep different tensors, so they must not use the same key: stages
    /// of a pipeline, and ranks that experts are distributed over. kOfTrainers: tensors of the trainer's own.
    /// 0: any rank may keep it.
    std::uint32_t home = 0;
    static constexpr std::uint32_t kOfTrainers = UINT32_MAX;

    friend bool operator==(const Tensor&, const Tensor&) = default;
  };
  std::vector<Tensor> tensors;
  std::vector<SavePiece> pieces;  ///< in the order in which they are written

  std::uint64_t bytes_of(const SavePiece& piece) const;
  friend bool operator==(const SaveStructure&, const SaveStructure&) = default;
};

/// For messages. Equal structures have equal bytes, so hash64 of them tells structures apart.
std::string to_text(const SaveStructure& structure);
/// The same without the homes: tensors and pieces. A copy of a rank's state fits every structure with an
/// equal one.
std::string layout_text(const SaveStructure& structure);
/// hash64 of layout_text().
std::uint64_t layout_hash(const SaveStructure& structure);
/// Reads either text. Errc::corrupt.
Result<SaveStructure> parse_structure(std::string_view text);

/// Errc::invalid_argument for a key that no file can have.
Result<void> check_key(std::string_view key);

/// The pieces that are not empty, ascending: what a rank writes of a save that it shares with no other.
std::vector<std::uint32_t> pieces_with_bytes(const SaveStructure& structure);

/// A piece and its place in the file.
struct PlannedShard {
  std::uint32_t piece = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  friend bool operator==(const PlannedShard&, const PlannedShard&) = default;
};

/// A file that one rank writes from beginning to end.
struct PlannedFile {
  std::string name;
  std::string header;  ///< its first bytes
  std::vector<PlannedShard> shards;

  std::uint64_t bytes() const { return shards.empty() ? header.size() : shards.back().end; }
  friend bool operator==(const PlannedFile&, const PlannedFile&) = default;
};

/// The files of a rank that writes the pieces in `assigned` (ascending). They are safetensors, whose readers
/// accept one part of a tensor per file, so a tensor's second part goes to another file than its first. So do
/// tensors that would make a header longer than `max_header_bytes`. A rank without pieces has no file.
std::vector<PlannedFile> plan_files(const SaveStructure& structure, std::span<const std::uint32_t> assigned,
                                    Rank rank, std::uint64_t max_header_bytes = kMaxHeaderBytes);

/// Which rank writes which pieces.
struct SavePlan {
  std::vector<std::vector<std::uint32_t>> assigned;  ///< per rank, ascending pieces of its structure
  std::uint64_t bytes = 0;                           ///< of all tensors
};

/// Every box is written by one of the ranks that hold it: boxes with few holders first, then large ones, each
/// by the holder with the fewest bytes so far. Errc::mismatch names a tensor that two ranks describe
/// differently, Errc::invalid_argument one that the pieces do not cover exactly or that has two homes.
/// `structures` has one entry per rank; ranks with the same structure may share one object, which makes
/// planning cheaper.
Result<SavePlan> plan_save(std::span<const SaveStructure* const> structures);

/// The result of writing one rank's files, in the order of plan_files.
struct WrittenShards {
  std::vector<std::uint64_t> hashes;  ///< of the shards, file by file
};

/// The manifest's files and tensors; the caller sets step, values and objects.
Manifest manifest_of(std::span<const SaveStructure* const> structures, const SavePlan& plan,
                     std::span<const WrittenShards> written);

}  // namespace troupe::core
