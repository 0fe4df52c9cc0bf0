#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.hpp"
#include "gpu/collective/nccl/abi.hpp"

namespace troupe::gpu {

/// NCCL's functions, each under its own name without the prefix. Filled in from the library, or by a test.
struct NcclApi {
  std::function<NcclStatus(int*)> get_version;
  std::function<NcclStatus(NcclUniqueId*)> get_unique_id;
  std::function<NcclStatus(NcclComm*, int, NcclUniqueId, int, NcclConfig*)> comm_init_rank_config;
  std::function<NcclStatus(NcclComm)> comm_finalize;
  std::function<NcclStatus(NcclComm)> comm_destroy;
  std::function<NcclStatus(NcclComm)> comm_abort;
  std::function<NcclStatus(NcclComm, NcclStatus*)> comm_get_async_error;
  std::function<const char*(NcclComm)> get_last_error;
  std::function<NcclStatus()> group_start;
  std::function<NcclStatus()> group_end;
  std::function<NcclStatus(const void*, void*, std::size_t, NcclDataType, NcclReduction, NcclComm,
                           NativeStream)>
      all_reduce;
  std::function<NcclStatus(const void*, void*, std::size_t, NcclDataType, NcclReduction, int, NcclComm,
                           NativeStream)>
      reduce;
  std::function<NcclStatus(const void*, void*, std::size_t, NcclDataType, NcclReduction, NcclComm,
                           NativeStream)>
      reduce_scatter;
  std::function<NcclStatus(const void*, void*, std::size_t, NcclDataType, NcclComm, NativeStream)> all_gather;
  std::function<NcclStatus(const void*, void*, std::size_t, NcclDataType, int, NcclComm, NativeStream)>
      broadcast;
  std::function<NcclStatus(const void*, std::size_t, NcclDataType, int, NcclComm, NativeStream)> send;
  std::function<NcclStatus(void*, std::size_t, NcclDataType, int, NcclComm, NativeStream)> receive;

  // Since 2.19, empty in older libraries: NcclCapabilities::registers_memory.
  std::function<NcclStatus(void**, std::size_t)> mem_alloc;
  std::function<NcclStatus(void*)> mem_free;
  std::function<NcclStatus(NcclComm, void*, std::size_t, void**)> comm_register;
  std::function<NcclStatus(NcclComm, void*)> comm_deregister;

  /// Whether the library has a function, by its full name; for functions newer than the oldest version.
  std::function<bool(const char*)> has;
};

/// Optional capabilities of this NCCL. Recovery never depends on them: a group that failed is aborted, and
/// the next epoch creates a new one.
struct NcclCapabilities {
  int version = 0;                     ///< 10000 major + 100 minor + patch, for example 22809
  bool registers_memory = false;       ///< ncclMemAlloc, ncclCommRegister and their counterparts: 2.19
  bool shrink = false;                 ///< ncclCommShrink: 2.27.3
  bool revoke = false;                 ///< ncclCommRevoke: 2.28.7
  bool grow = false;                   ///< ncclCommGrow: 2.29.2
  bool query_properties = false;       ///< ncclCommQueryProperties: 2.29.2
  bool suspend = false;                ///< ncclCommSuspend: 2.29.7
  bool abortable_symmetric = false;    ///< kernels on symmetric memory check the abort flag: 2.29.7
  bool several_ranks_on_gpu = false;   ///< NCCL_MULTI_RANK_GPU_ENABLE: 2.30.3
  bool implicit_launch_order = false;  ///< NCCL_LAUNCH_ORDER_IMPLICIT: 2.26.2
  bool restarts_in_process = false;    ///< not 2.28.3 to 2.28.8, which were seen to crash there
};

NcclCapabilities nccl_capabilities(int version, const std::function<bool(const char*)>& has);

/// "2.28.9".
std::string nccl_version_text(int version);

/// A usable NCCL.
struct NcclLibrary {
  NcclApi api;
  NcclCapabilities capabilities;
  /// For the user: environment variables that override what Troupe asks for, versions with known defects. For
  /// the log.
  std::vector<std::string> warnings;
};

/// The oldest supported NCCL: 2.18 introduced the configuration fields that Troupe sets.
inline constexpr int kOldestNccl = 21800;

struct NcclLibraryOptions {
  /// Names passed to dlopen(). TROUPE_NCCL_LIBRARY in the environment takes precedence.
  std::vector<std::string> names{"libnccl.so.2", "libnccl.so"};
};

/// Opens the library, once for the lifetime of the process (it is never closed: its threads stay), after
/// setting the variables of environment.hpp. Errc::unavailable says which names were tried, or which function
/// is missing, or that the version is too old. Call it before other threads read the environment.
core::Result<std::shared_ptr<const NcclLibrary>> open_nccl_library(const NcclLibraryOptions& options = {});

/// The library for a function table that the caller filled in.
core::Result<std::shared_ptr<const NcclLibrary>> make_nccl_library(NcclApi api);

}  // namespace troupe::gpu
