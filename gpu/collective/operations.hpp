#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/ids.hpp"
#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/order/task_order.hpp"

namespace troupe::gpu {

/// The operation with its even counts filled in, or Errc::invalid_argument naming the invalid field for
/// member `index` of a group of `size`. Every back-end calls it first in post().
core::Result<Operation> prepare(Operation operation, int index, int size);

/// Every back-end calls it first in post_together(): messages only. As prepare() for each.
core::Result<std::vector<Posting>> prepare(std::vector<Posting> postings, int index, int size);

/// What a prepared operation reads and writes on this rank.
Accesses accesses_of(const Operation& operation);
/// Tells a stream that checks order; every back-end calls it for what it enqueues.
void declare(StreamQueue& stream, const Operation& operation);

/// This rank's index among the members. Errc::invalid_argument if the options cannot form a group: no
/// members, a duplicate, `self` not among them, or a name with forbidden characters.
core::Result<int> index_of_self(const GroupOptions& options);

/// What a prepared operation must have in common with the other members' operations.
struct Signature {
  OperationKind kind = OperationKind::barrier;
  core::DType dtype = core::DType::f32;
  ReduceOp reduce = ReduceOp::sum;
  int peer = 0;
  std::size_t elements = 0;  ///< for all_reduce, broadcast, send and receive; the others have counts
  PartCountsView input_counts;
  PartCountsView output_counts;
};

/// The signature of a prepared operation; its counts are the operation's.
Signature signature_of(const Operation& operation);

/// A sentence naming the first member that posted something different from the first member, and the field;
/// empty if all agree. `signatures` and `members` are in group order; the counts of an exchange are compared
/// if they are there.
std::optional<std::string> find_disagreement(std::span<const Signature> signatures,
                                             std::span<const core::Rank> members);

/// Like find_disagreement(), for the two sides of a message.
std::optional<std::string> find_disagreement(const Signature& send, core::Rank sender,
                                             const Signature& receive, core::Rank receiver);

/// A member and what it sends to another one in an exchange, or expects from it.
struct ExchangeSide {
  core::Rank rank;
  std::size_t index = 0;  ///< in the group
  std::size_t elements = 0;
};
/// The sentence for two that differ.
std::string uneven_exchange(const ExchangeSide& from, const ExchangeSide& to);

/// The offset of each part, in elements, and the total at the end: n + 1 numbers.
std::vector<std::size_t> offsets_of(PartCountsView counts);

/// Whether operations of this kind compute.
bool reduces(OperationKind kind) noexcept;

std::string_view name_of(ReduceOp reduce) noexcept;

}  // namespace troupe::gpu
