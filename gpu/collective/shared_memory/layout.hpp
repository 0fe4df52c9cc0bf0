#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "gpu/collective/operations.hpp"
#include "gpu/collective/shared_memory/peer_watch.hpp"
#include "gpu/collective/shared_memory/word.hpp"

namespace troupe::gpu {

// The contents of a group's segment. All members run the same build, so the structs define the format.

/// One per group.
struct ArenaHeader {
  SharedWord joined;    ///< members that have mapped the segment
  SharedWord arrivals;  ///< at all meetings combined
  /// 0 as long as there is no error; then code + 1 in the low byte and above it the member whose text gives
  /// the reason. Set once, by the member that saw the error first, so that all survivors agree.
  alignas(64) std::atomic<std::uint64_t> verdict;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// One per member, written only by that member.
struct alignas(64) ArenaMember {
  posix::ProcessIdentity process;
  std::atomic<std::uint32_t> meetings;  ///< number of meetings it has arrived at
  std::atomic<std::uint32_t> has_left;
  std::array<char, 480> text;  ///< of its verdict, zero-terminated
};

/// A signature as stored in the segment; 2 n counts may follow it.
struct SharedSignature {
  OperationKind kind;
  core::DType dtype;
  ReduceOp reduce;
  std::int32_t peer;
  std::uint32_t input_counts;
  std::uint32_t output_counts;
  std::uint64_t elements;
};

/// One per ordered pair of members: a message goes through two buffers alternately.
struct ArenaChannel {
  SharedWord written;  ///< chunks, over all messages
  SharedWord read;
  SharedWord poured;  ///< chunks, over all collectives that pour
  SharedWord drained;
  SharedSignature message;
};

/// The layout. Each member has two boxes of a signature and staging memory; channels have two buffers.
struct ArenaLayout {
  std::size_t members = 0;
  std::size_t staging_bytes = 0;

  /// Staging memory is cut into a slot per member, in multiples of this; each has at least one.
  static constexpr std::size_t kSlotAlignment = 64;
  static constexpr std::size_t align(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

  std::size_t signature_bytes() const {
    return align(sizeof(SharedSignature) + 2 * members * sizeof(std::size_t), 64);
  }
  std::size_t channel_buffer_bytes() const {
    constexpr std::size_t kBudget = std::size_t{4} << 20;
    constexpr std::size_t kMost = std::size_t{128} << 10;
    const std::size_t share = kBudget / (2 * members * members) / 4096 * 4096;
    return share < 4096 ? 4096 : share > kMost ? kMost : share;
  }
  std::size_t box_bytes() const { return align(signature_bytes() + staging_bytes, 4096); }
  std::size_t channel_bytes() const { return align(sizeof(ArenaChannel), 4096) + 2 * channel_buffer_bytes(); }

  std::size_t member(std::size_t index) const { return sizeof(ArenaHeader) + index * sizeof(ArenaMember); }
  std::size_t box(std::size_t index, std::size_t half) const {
    return align(member(members), 4096) + (2 * index + half) * box_bytes();
  }
  std::size_t channel(std::size_t from, std::size_t to) const {
    return box(members, 0) + (from * members + to) * channel_bytes();
  }
  std::size_t total() const { return channel(members, 0); }
};

}  // namespace troupe::gpu
