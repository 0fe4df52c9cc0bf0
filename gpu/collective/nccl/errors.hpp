#pragma once

#include <string>
#include <string_view>

#include "core/ids.hpp"
#include "core/result.hpp"
#include "gpu/collective/nccl/library.hpp"

namespace troupe::gpu {

/// The caller of NCCL, for errors.
struct NcclCaller {
  std::string group;
  core::Epoch epoch{};
  core::Rank rank{};
  std::string device;  ///< "cuda:0"

  /// "group 'dp' (epoch 3), rank 4 on cuda:0".
  std::string text() const;
};

/// "ncclRemoteError".
std::string name_of(NcclStatus status);

/// Maps a status of NCCL: remote_error is peer_lost, timeout is timeout, system_error is io, the rest
/// internal. The message contains the call, the caller and `detail`.
core::Error nccl_error(NcclStatus status, std::string_view call, const NcclCaller& caller,
                       std::string_view detail);

}  // namespace troupe::gpu
