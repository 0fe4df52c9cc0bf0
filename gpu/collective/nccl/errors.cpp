#include "gpu/collective/nccl/errors.hpp"

#include <fmt/format.h>

namespace troupe::gpu {
namespace {

core::Errc code_of(NcclStatus status) {
  switch (status) {
    case NcclStatus::remote_error:
      return core::Errc::peer_lost;
    case NcclStatus::system_error:
      return core::Errc::io;
    case NcclStatus::timeout:
      return core::Errc::timeout;
    default:
      return core::Errc::internal;
  }
}

std::string_view what_next(NcclStatus status) {
  switch (status) {
    case NcclStatus::invalid_argument:
      return "no caller can cause this, since arguments are checked before: report it with NCCL's own log "
             "(NCCL_DEBUG=WARN); the group is aborted: make a new one in the next epoch";
    case NcclStatus::invalid_usage:
      return "two ranks on one GPU, launches from two threads, or members that launch different operations; "
             "the group is aborted: make a new one in the next epoch";
    case NcclStatus::remote_error:
      return "a peer or the network to it is gone; the group is aborted: make a new one in the next epoch";
    default:
      return "set NCCL_DEBUG=WARN to see NCCL's own log; the group is aborted: make a new one in the next "
             "epoch";
  }
}

}  // namespace

std::string NcclCaller::text() const {
  return fmt::format("group '{}' (epoch {}), rank {} on {}", group, epoch.value, rank.value, device);
}

std::string name_of(NcclStatus status) {
  constexpr const char* kNames[] = {"ncclSuccess",       "ncclUnhandledCudaError", "ncclSystemError",
                                    "ncclInternalError", "ncclInvalidArgument",    "ncclInvalidUsage",
                                    "ncclRemoteError",   "ncclInProgress",         "ncclTimeout"};
  const auto number = static_cast<std::size_t>(status);
  return number < std::size(kNames) ? kNames[number] : fmt::format("NCCL status {}", number);
}

core::Error nccl_error(NcclStatus status, std::string_view call, const NcclCaller& caller,
                       std::string_view detail) {
  return {code_of(status),
          fmt::format("{}: {} ended in {}: {}; {}", caller.text(), call, name_of(status),
                      detail.empty() ? std::string_view("NCCL gives no reason") : detail, what_next(status))};
}

}  // namespace troupe::gpu
