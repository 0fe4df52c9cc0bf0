#pragma once

#include <cstddef>
#include <vector>

#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/collective/nccl/abi.hpp"

namespace troupe::gpu {

/// One call of an NCCL function.
struct NcclCall {
  enum class Function { all_reduce, reduce, reduce_scatter, all_gather, broadcast, send, receive };

  Function function = Function::all_reduce;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;  ///< elements of `type`; for reduce_scatter and all_gather in one part
  NcclDataType type = NcclDataType::u8;
  NcclReduction reduction = NcclReduction::sum;
  int peer = 0;  ///< root, or the other side

  friend bool operator==(const NcclCall&, const NcclCall&) = default;
};

/// "ncclAllReduce".
const char* name_of(NcclCall::Function function) noexcept;

/// A prepared operation as this member executes it: calls that form one group, or in a group of one member
/// copies, since a communicator of one costs half a gigabyte and does nothing.
struct NcclPlan {
  struct Copy {
    ConstBufferView source;
    BufferView destination;
  };

  std::vector<NcclCall> calls;
  std::vector<Copy> copies;
};

/// Maps a prepared operation of member `index` of `size`. `barrier_word` is 4 bytes of device memory
/// containing zero. Parts of zero elements are skipped, by all members alike. Operations that only move data
/// move bytes. Errc::unavailable for what NCCL does not support: sums of 16-bit integers, products,
/// bit operations, lists of rows.
core::Result<NcclPlan> plan_nccl_calls(const Operation& operation, int index, int size,
                                       BufferView barrier_word);

}  // namespace troupe::gpu
