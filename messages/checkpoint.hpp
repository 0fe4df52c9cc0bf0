#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/ids.hpp"
#include "messages/failure.hpp"

namespace troupe::messages {

// `sequence` counts the saves of a session, from 1; it is the same on all ranks, and together with the
// envelope's epoch it identifies a save for ever.

/// Trainer to ParameterShards and CheckpointWriter of its rank: save the state after `step`.
struct SaveBegan {
  std::uint64_t sequence = 0;
  core::Step step{};     ///< the last decided one; -1 before the first
  std::string topology;  ///< JSON of a core::Value
  std::string common;    ///< JSON of a core::Value; rank 0's is kept
  std::string objects;   ///< JSON: [[key, grid, cell, value], ...] of this rank

  friend bool operator==(const SaveBegan&, const SaveBegan&) = default;
};

/// ParameterShard, or the trainer for its own tensors, to CheckpointWriter: the bucket holds the state to be
/// saved, and no update touches it before BucketStaged.
struct BucketHeld {
  std::uint64_t sequence = 0;
  core::BucketIndex bucket{};

  friend bool operator==(const BucketHeld&, const BucketHeld&) = default;
};

/// CheckpointWriter to ParameterShard or trainer: the save no longer needs the bucket.
struct BucketStaged {
  std::uint64_t sequence = 0;

  friend bool operator==(const BucketStaged&, const BucketStaged&) = default;
};

/// CheckpointWriter to CheckpointCoordinator: this rank takes part in a save.
struct SaveAnnounced {
  std::uint64_t sequence = 0;
  core::Rank rank{};
  core::Step step{};
  std::uint64_t structure_hash = 0;  ///< of what the rank could write
  std::uint64_t common_hash = 0;
  std::string topology;  ///< rank 0 only
  std::string common;    ///< rank 0 only
  std::string objects;

  friend bool operator==(const SaveAnnounced&, const SaveAnnounced&) = default;
};

/// CheckpointCoordinator to a CheckpointWriter whose structure is unknown, and the answer: one part after
/// another, because a connection queues only so much.
struct StructureWanted {
  std::uint64_t structure_hash = 0;
  std::uint32_t part = 0;

  friend bool operator==(const StructureWanted&, const StructureWanted&) = default;
};
struct StructurePart {
  std::uint64_t structure_hash = 0;
  std::uint32_t part = 0;
  std::uint32_t parts = 0;
  std::string text;

  friend bool operator==(const StructurePart&, const StructurePart&) = default;
};

/// I/O worker to CheckpointCoordinator: the save's directory exists, or could not be created.
struct SaveDirectoryMade {
  std::uint64_t sequence = 0;
  Failure failure;

  friend bool operator==(const SaveDirectoryMade&, const SaveDirectoryMade&) = default;
};

/// CheckpointCoordinator to every CheckpointWriter: write these pieces of your structure into this directory.
struct SavePlanned {
  std::uint64_t sequence = 0;
  std::string directory;
  std::vector<std::uint32_t> pieces;

  friend bool operator==(const SavePlanned&, const SavePlanned&) = default;
};

/// Device to CheckpointWriter: a chunk is in the staging buffer of this credit.
struct ChunkStaged {
  std::uint64_t sequence = 0;
  std::uint32_t chunk = 0;
  std::uint32_t credit = 0;

  friend bool operator==(const ChunkStaged&, const ChunkStaged&) = default;
};

/// I/O worker to CheckpointWriter: the chunk is in its file, the credit is free.
struct ChunkWritten {
  std::uint64_t sequence = 0;
  std::uint32_t chunk = 0;
  std::uint32_t credit = 0;
  Failure failure;

  friend bool operator==(const ChunkWritten&, const ChunkWritten&) = default;
};

/// I/O worker to CheckpointWriter, and CheckpointWriter to CheckpointCoordinator: the rank's files are
/// complete and durable; the hashes of their shards in the order of writing.
struct FilesDurable {
  std::uint64_t sequence = 0;
  core::Rank rank{};
  std::vector<std::uint64_t> hashes;
  Failure failure;

  friend bool operator==(const FilesDurable&, const FilesDurable&) = default;
};

/// CheckpointWriter to CheckpointCoordinator: this rank cannot write its part.
struct SaveFailed {
  std::uint64_t sequence = 0;
  core::Rank rank{};
  Failure failure;

  friend bool operator==(const SaveFailed&, const SaveFailed&) = default;
};

/// I/O worker to CheckpointCoordinator: the checkpoint is visible and durable, or the commit failed.
struct SaveCommitDone {
  std::uint64_t sequence = 0;
  Failure failure;

  friend bool operator==(const SaveCommitDone&, const SaveCommitDone&) = default;
};

/// CheckpointCoordinator to every CheckpointWriter, and CheckpointWriter to Trainer: the save is committed,
/// or it failed: then no part of it counts, unless the commit itself succeeded and its report did not.
struct SaveOver {
  std::uint64_t sequence = 0;
  core::Step step{};
  std::string directory;
  std::uint64_t bytes = 0;  ///< of all tensors
  std::string warning;      ///< a problem to report although the save is good; may be empty
  Failure failure;

  friend bool operator==(const SaveOver&, const SaveOver&) = default;
};

}  // namespace troupe::messages
