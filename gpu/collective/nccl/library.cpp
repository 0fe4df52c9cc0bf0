#include "gpu/collective/nccl/library.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/nccl/environment.hpp"

namespace troupe::gpu {
namespace {

using core::Errc;

template <class Returned, class... Args>
void resolve(void* library, std::function<Returned(Args...)>& slot, const char* name) {
  auto* const found = reinterpret_cast<Returned (*)(Args...)>(dlsym(library, name));
  if (found != nullptr) slot = found;
}

/// Calls visit(slot, full name) for every function that Troupe requires.
template <class Api, class Visit>
void for_each_function(Api& api, Visit visit) {
  visit(api.get_version, "ncclGetVersion");
  visit(api.get_unique_id, "ncclGetUniqueId");
  visit(api.comm_init_rank_config, "ncclCommInitRankConfig");
  visit(api.comm_finalize, "ncclCommFinalize");
  visit(api.comm_destroy, "ncclCommDestroy");
  visit(api.comm_abort, "ncclCommAbort");
  visit(api.comm_get_async_error, "ncclCommGetAsyncError");
  visit(api.get_last_error, "ncclGetLastError");
  visit(api.group_start, "ncclGroupStart");
  visit(api.group_end, "ncclGroupEnd");
  visit(api.all_reduce, "ncclAllReduce");
  visit(api.reduce, "ncclReduce");
  visit(api.reduce_scatter, "ncclReduceScatter");
  visit(api.all_gather, "ncclAllGather");
  visit(api.broadcast, "ncclBroadcast");
  visit(api.send, "ncclSend");
  visit(api.receive, "ncclRecv");
}

/// The same for optional functions.
template <class Api, class Visit>
void for_each_newer_function(Api& api, Visit visit) {
  visit(api.mem_alloc, "ncclMemAlloc");
  visit(api.mem_free, "ncclMemFree");
  visit(api.comm_register, "ncclCommRegister");
  visit(api.comm_deregister, "ncclCommDeregister");
}

NcclApi resolve_all(void* library) {
  NcclApi api;
  const auto fill = [&](auto& slot, const char* name) { resolve(library, slot, name); };
  for_each_function(api, fill);
  for_each_newer_function(api, fill);
  api.has = [library](const char* name) { return dlsym(library, name) != nullptr; };
  return api;
}

}  // namespace

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

NcclCapabilities nccl_capabilities(int version, const std::function<bool(const char*)>& has) {
  return {.version = version,
          .registers_memory = has("ncclMemAlloc") && has("ncclMemFree") && has("ncclCommRegister") &&
                              has("ncclCommDeregister"),
          .shrink = has("ncclCommShrink"),
          .revoke = has("ncclCommRevoke"),
          .grow = has("ncclCommGrow"),
          .query_properties = has("ncclCommQueryProperties"),
          .suspend = has("ncclCommSuspend"),
          .abortable_symmetric = version >= 22907,
          .several_ranks_on_gpu = version >= 23003,
          .implicit_launch_order = version >= 22602,
          .restarts_in_process = version < 22803 || version > 22808};
}

core::Result<std::shared_ptr<const NcclLibrary>> make_nccl_library(NcclApi api) {
  const char* missing = nullptr;
  for_each_function(api, [&](const auto& slot, const char* name) {
    if (!slot && missing == nullptr) missing = name;
  });
  if (missing != nullptr) {
    return core::fail(Errc::unavailable,
                      "NCCL: expected the function {}, but the library does not have it; install {} or newer",
                      missing, nccl_version_text(kOldestNccl));
  }
  int version = 0;
  if (const NcclStatus status = api.get_version(&version); status != NcclStatus::success) {
    return core::fail(Errc::unavailable, "NCCL: ncclGetVersion ended in status {}; the library is damaged",
                      static_cast<int>(status));
  }
  if (version < kOldestNccl) {
    return core::fail(Errc::unavailable, "NCCL: expected version {} or newer, found {}; install a newer one",
                      nccl_version_text(kOldestNccl), nccl_version_text(version));
  }
  auto library = std::make_shared<NcclLibrary>();
  library->capabilities = nccl_capabilities(
      version, api.has ? api.has : [](const char*) { return false; });
  for_each_newer_function(api, [&](const auto& slot, const char*) {
    if (!slot) library->capabilities.registers_memory = false;
  });
  library->api = std::move(api);
  if (!library->capabilities.implicit_launch_order) {
    library->warnings.push_back(fmt::format(
        "NCCL {} does not keep the order of launches, so two groups of a device may wait for each other for "
        "ever when the device is full: install 2.26.2 or newer, or have one group per device",
        nccl_version_text(version)));
  }
  if (!library->capabilities.restarts_in_process) {
    library->warnings.push_back(fmt::format(
        "NCCL {} was seen to crash when groups are made again in one process; use 2.28.9 or newer",
        nccl_version_text(version)));
  }
  return library;
}

core::Result<std::shared_ptr<const NcclLibrary>> open_nccl_library(const NcclLibraryOptions& options) {
  std::vector<std::string> names = options.names;
  if (const char* const chosen = std::getenv("TROUPE_NCCL_LIBRARY")) names.insert(names.begin(), chosen);
  const std::vector<std::string> warnings = prepare_nccl_environment();
  std::string tried;
  for (const std::string& name : names) {
    if (void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      auto opened = TRY(make_nccl_library(resolve_all(library)));
      auto complete = std::make_shared<NcclLibrary>(*opened);
      complete->warnings.insert(complete->warnings.end(), warnings.begin(), warnings.end());
      return complete;
    }
    const char* const reason = dlerror();
    tried += fmt::format("{}{} ({})", tried.empty() ? "" : ", ", name, reason ? reason : "no reason given");
  }
  return core::fail(Errc::unavailable,
                    "NCCL was not found: looked for {}; install it (packages libnccl2 and libnccl-dev, or "
                    "the Python package nvidia-nccl) where the loader looks, or name the file in "
                    "TROUPE_NCCL_LIBRARY",
                    tried);
}

}  // namespace troupe::gpu
