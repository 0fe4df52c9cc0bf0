#pragma once

#include <climits>
#include <cstddef>

// The two opaque handle types of NCCL.
struct ncclComm;
struct CUstream_st;

namespace troupe::gpu {

/// The part of NCCL's binary interface that Troupe uses, declared here: the library is opened at run time, so
/// that one build works on machines with it, without it and with another version of it. cuda/abi_check.cpp
/// compares all of this with nccl.h in builds that have the header.
using NcclComm = ncclComm*;
using NativeStream = CUstream_st*;

enum class NcclStatus : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
  timeout = 8,  ///< since 2.30.3
};

enum class NcclDataType : int {
  i8 = 0,
  u8 = 1,
  i32 = 2,
  u32 = 3,
  i64 = 4,
  u64 = 5,
  f16 = 6,
  f32 = 7,
  f64 = 8,
  bf16 = 9,
};

enum class NcclReduction : int { sum = 0, max = 2, min = 3, average = 4 };

struct NcclUniqueId {
  char bytes[128];
};

inline constexpr int kNcclUndefined = INT_MIN;

/// ncclConfig_t of 2.28. Older libraries read only its beginning, newer ones know its size.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 22809;
  int blocking = kNcclUndefined;
  int cga_cluster_size = kNcclUndefined;
  int min_ctas = kNcclUndefined;
  int max_ctas = kNcclUndefined;
  const char* net_name = nullptr;
  int split_share = kNcclUndefined;
  int traffic_class = kNcclUndefined;
  const char* comm_name = nullptr;
  int collnet_enable = kNcclUndefined;
  int cta_policy = kNcclUndefined;
  int shrink_share = kNcclUndefined;
  int nvls_ctas = kNcclUndefined;
  int channels_per_net_peer = kNcclUndefined;
  int nvlink_centric_sched = kNcclUndefined;
};

}  // namespace troupe::gpu
