#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actors/planes/checkpoint/upload.hpp"
#include "actors/session/context.hpp"
#include "actors/session/held_boxes.hpp"
#include "actors/session/host_exchange.hpp"
#include "actors/session/local_search.hpp"
#include "actors/world/storage.hpp"
#include "core/checkpoint/survivors.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// One restore of a local save whose copies do not fit the ranks that there are: it was made by another
/// number of ranks, with another layout, or the copies have come to other ranks. Those that hold copies read
/// them, and give each rank what it wants. By all ranks alike: prepare(), and exchange() once all are ready.
class GatheredCopies {
 public:
  /// `attempt` is the prefix of the keys in the job's store; no other attempt has it. Everything given must
  /// outlive it.
  GatheredCopies(const SessionContext& context, HostExchange* hosts, const RestoreChoice& choice,
                 std::string attempt)
      : in_(context), hosts_(hosts), choice_(choice), attempt_(std::move(attempt)) {}

  /// Reads into memory what this rank gives, checked against its hashes, from `storages`, and plans who takes
  /// what. The session's state is as before. Errc::not_found names something wanted that the save does not
  /// contain, Errc::corrupt a damaged copy.
  core::Result<void> prepare(const std::map<core::Rank, Storage*>& storages);
  /// After an Error no rank can go on: the state is partly loaded. `uploads` as in ReadOptions.
  core::Result<void> exchange(UploadPool* uploads);

 private:
  struct Copy {
    core::SaveStructure structure;
    std::vector<std::byte> bytes;
    std::vector<std::span<std::byte>> memory;  ///< of the structure's pieces
  };

  core::Result<void> read_copies(const std::map<core::Rank, Storage*>& storages);
  core::Result<void> hear_structures();
  core::Result<void> plan();

  const SessionContext& in_;
  HostExchange* hosts_;
  const RestoreChoice& choice_;
  std::string attempt_;
  std::map<core::Rank, Copy> copies_;                        ///< that this rank gives, by owner
  std::map<std::uint64_t, core::SaveStructure> structures_;  ///< by layout_hash()
  std::unique_ptr<const core::Survival> survival_;
  HeldBoxes held_;
};

}  // namespace troupe::actors
