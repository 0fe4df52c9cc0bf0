#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/session/context.hpp"
#include "actors/session/device_copies.hpp"
#include "actors/session/groups.hpp"
#include "actors/session/replicas.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"
#include "gpu/buffer.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/stream.hpp"

namespace troupe::actors {

/// What ranks that keep the same parameters do about their values before the first step. By all ranks alike,
/// in the trainer's thread, once.
class FirstValuesOfRanks {
 public:
  /// `number` counts these of a session. Everything given must outlive it.
  FirstValuesOfRanks(const SessionContext& context, GroupMaker groups, std::uint64_t number);

  /// One pass over the bytes that this rank keeps. Errc::mismatch, on all ranks, names the first parameter of
  /// which two ranks have other bits, and the two.
  core::Result<void> compare();
  /// Every rank gets the values of the first one that keeps the same.
  core::Result<void> broadcast();

 private:
  core::Result<std::string> first_difference(const std::vector<SharedParameters>& all,
                                             const std::vector<std::uint64_t>& hashes);
  core::Result<void> broadcast(const SharedParameters& shared);
  core::Result<void> send(gpu::Group& group, gpu::BufferView piece, core::DType dtype, bool is_first);

  const SessionContext& in_;
  GroupMaker groups_;
  Replicas replicas_;
  DeviceCopies copies_;
  std::string prefix_;  ///< of keys in the job's store
  gpu::Stream sending_;
  std::map<std::vector<core::Rank>, std::unique_ptr<gpu::Group>> made_;  ///< by members
};

}  // namespace troupe::actors
