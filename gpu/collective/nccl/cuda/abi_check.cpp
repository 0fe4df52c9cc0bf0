// Compares gpu/collective/nccl/abi.hpp, and the function table filled from the library, with NCCL's own
// header.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "gpu/collective/nccl/library.hpp"

namespace troupe::gpu {
namespace {

static_assert(std::is_same_v<NcclComm, ncclComm_t>);
static_assert(std::is_same_v<NativeStream, cudaStream_t>);
static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(sizeof(NcclStatus) == sizeof(ncclResult_t));
static_assert(sizeof(NcclDataType) == sizeof(ncclDataType_t));
static_assert(sizeof(NcclReduction) == sizeof(ncclRedOp_t));

constexpr bool same(auto ours, auto theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}

static_assert(same(NcclStatus::success, ncclSuccess));
static_assert(same(NcclStatus::unhandled_cuda_error, ncclUnhandledCudaError));
static_assert(same(NcclStatus::system_error, ncclSystemError));
static_assert(same(NcclStatus::internal_error, ncclInternalError));
static_assert(same(NcclStatus::invalid_argument, ncclInvalidArgument));
static_assert(same(NcclStatus::invalid_usage, ncclInvalidUsage));
static_assert(same(NcclStatus::remote_error, ncclRemoteError));
static_assert(same(NcclStatus::in_progress, ncclInProgress));

static_assert(same(NcclDataType::i8, ncclInt8));
static_assert(same(NcclDataType::u8, ncclUint8));
static_assert(same(NcclDataType::i32, ncclInt32));
static_assert(same(NcclDataType::u32, ncclUint32));
static_assert(same(NcclDataType::i64, ncclInt64));
static_assert(same(NcclDataType::u64, ncclUint64));
static_assert(same(NcclDataType::f16, ncclFloat16));
static_assert(same(NcclDataType::f32, ncclFloat32));
static_assert(same(NcclDataType::f64, ncclFloat64));
static_assert(same(NcclDataType::bf16, ncclBfloat16));

static_assert(same(NcclReduction::sum, ncclSum));
static_assert(same(NcclReduction::max, ncclMax));
static_assert(same(NcclReduction::min, ncclMin));
static_assert(same(NcclReduction::average, ncclAvg));

// Newer headers append to the structure, and newer libraries accept an older one by its size and version.
static_assert(sizeof(NcclConfig) <= sizeof(ncclConfig_t));
static_assert(kNcclUndefined == NCCL_CONFIG_UNDEF_INT);
constexpr ncclConfig_t kTheirs = NCCL_CONFIG_INITIALIZER;
static_assert(NcclConfig{}.magic == kTheirs.magic);
#define SAME_PLACE(ours, theirs)                                                \
  static_assert(offsetof(NcclConfig, ours) == offsetof(ncclConfig_t, theirs) && \
                std::is_same_v<decltype(NcclConfig::ours), decltype(ncclConfig_t::theirs)>)
SAME_PLACE(size, size);
SAME_PLACE(magic, magic);
SAME_PLACE(version, version);
SAME_PLACE(blocking, blocking);
SAME_PLACE(cga_cluster_size, cgaClusterSize);
SAME_PLACE(min_ctas, minCTAs);
SAME_PLACE(max_ctas, maxCTAs);
SAME_PLACE(net_name, netName);
SAME_PLACE(split_share, splitShare);
SAME_PLACE(traffic_class, trafficClass);
SAME_PLACE(comm_name, commName);
SAME_PLACE(collnet_enable, collnetEnable);
SAME_PLACE(cta_policy, CTAPolicy);
SAME_PLACE(shrink_share, shrinkShare);
SAME_PLACE(nvls_ctas, nvlsCTAs);
SAME_PLACE(channels_per_net_peer, nChannelsPerNetPeer);
SAME_PLACE(nvlink_centric_sched, nvlinkCentricSched);
#undef SAME_PLACE

/// Whether two parameters are passed the same way: the same type, or our name for theirs.
template <class Ours, class Theirs>
constexpr bool kSame = std::is_same_v<Ours, Theirs> ||
                       (std::is_enum_v<Ours> && std::is_enum_v<Theirs>) ||  // of one size, as asserted above
                       (std::is_same_v<Ours, NcclUniqueId>&& std::is_same_v<Theirs, ncclUniqueId>);
template <class Ours, class Theirs>
constexpr bool kSame<Ours*, Theirs*> = std::is_same_v<Ours, Theirs> || kSame<Ours, Theirs> ||
                                       (std::is_same_v<Ours, NcclConfig> &&
                                        std::is_same_v<Theirs, ncclConfig_t>);

template <class Slot, class Function>
struct SameSignature;
template <class Returned, class... Ours, class Given, class... Theirs>
struct SameSignature<std::function<Returned(Ours...)>, Given(Theirs...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
      return false;
    } else {
      return kSame<Returned, Given> && (kSame<Ours, Theirs> && ...);
    }
  }();
};
#define SAME_SIGNATURE(slot, function) \
  static_assert(SameSignature<decltype(NcclApi::slot), decltype(function)>::value)
SAME_SIGNATURE(get_version, ncclGetVersion);
SAME_SIGNATURE(get_unique_id, ncclGetUniqueId);
SAME_SIGNATURE(comm_init_rank_config, ncclCommInitRankConfig);
SAME_SIGNATURE(comm_finalize, ncclCommFinalize);
SAME_SIGNATURE(comm_destroy, ncclCommDestroy);
SAME_SIGNATURE(comm_abort, ncclCommAbort);
SAME_SIGNATURE(comm_get_async_error, ncclCommGetAsyncError);
SAME_SIGNATURE(get_last_error, ncclGetLastError);
SAME_SIGNATURE(group_start, ncclGroupStart);
SAME_SIGNATURE(group_end, ncclGroupEnd);
SAME_SIGNATURE(all_reduce, ncclAllReduce);
SAME_SIGNATURE(reduce, ncclReduce);
SAME_SIGNATURE(reduce_scatter, ncclReduceScatter);
SAME_SIGNATURE(all_gather, ncclAllGather);
SAME_SIGNATURE(broadcast, ncclBroadcast);
SAME_SIGNATURE(send, ncclSend);
SAME_SIGNATURE(receive, ncclRecv);
SAME_SIGNATURE(mem_alloc, ncclMemAlloc);
SAME_SIGNATURE(mem_free, ncclMemFree);
SAME_SIGNATURE(comm_register, ncclCommRegister);
SAME_SIGNATURE(comm_deregister, ncclCommDeregister);
#undef SAME_SIGNATURE

}  // namespace
}  // namespace troupe::gpu
