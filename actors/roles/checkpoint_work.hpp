#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "core/ids.hpp"

namespace troupe::actors {

/// CheckpointWriter: these pieces of the rank's structure go into this directory. Comes before all chunks.
struct OpenSave {
  std::uint64_t sequence = 0;
  std::string directory;
  std::vector<std::uint32_t> pieces;
};

/// CheckpointWriter: copy a chunk into the staging buffer `credit`, after the update of its bucket. Ends in
/// ChunkStaged.
struct StageChunk {
  std::uint64_t sequence = 0;
  std::uint32_t chunk = 0;
  std::uint32_t credit = 0;
};

/// CheckpointWriter: append the staging buffer to its file. Ends in ChunkWritten. Chunks are written in
/// order.
struct WriteChunk {
  std::uint64_t sequence = 0;
  std::uint32_t chunk = 0;
  std::uint32_t credit = 0;
};

/// CheckpointWriter: make the rank's files durable. Ends in FilesDurable.
struct FinishFiles {
  std::uint64_t sequence = 0;
};

/// CheckpointWriter: nothing more of this save will be written; its files are closed.
struct CloseSave {
  std::uint64_t sequence = 0;
};

/// CheckpointCoordinator: make the directory of a save, and remove what earlier saves left unfinished. Ends
/// in SaveDirectoryMade.
struct MakeSaveDirectory {
  std::uint64_t sequence = 0;
  std::string directory;
};

/// CheckpointCoordinator: put the manifest into `directory`, then give the directory its name; afterwards
/// remove checkpoints that retention does not keep. Ends in SaveCommitDone.
struct CommitSave {
  std::uint64_t sequence = 0;
  std::string directory;
  core::StepCount step{};  ///< completed steps; names the checkpoint
  std::string manifest;
};

/// CheckpointCoordinator: the save failed; its directory is removed.
struct DiscardSave {
  std::string directory;
};

using CheckpointWork = std::variant<OpenSave, StageChunk, WriteChunk, FinishFiles, CloseSave,
                                    MakeSaveDirectory, CommitSave, DiscardSave>;

}  // namespace troupe::actors
