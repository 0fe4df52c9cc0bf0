#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"
#include "gpu/buffer.hpp"

namespace troupe::actors {

/// A way of cutting all ranks of a job into groups, for the trainer's own collectives: those of tensor
/// parallelism, of experts, of pipeline stages. The same on all ranks.
struct TrainerGroupSpec {
  std::string name;  ///< letters, digits, '-' and '_'
  /// Every rank is in exactly one of these, in group order.
  std::vector<std::vector<core::Rank>> members;
};

/// This rank's group of a TrainerGroupSpec, used by the trainer's thread. All members ask for the same
/// operations in the same order, at the same places among their sessions' calls. A group has its own
/// stream. Where a device runs collectives in launch order, an operation comes after all those of the
/// session that earlier calls have made ready, on all ranks alike
/// (docs/decisions/0011-collectives-of-trainers.md).
///
/// An operation runs after what has been enqueued on the trainer's compute stream, if any; buffers stay alive
/// and untouched until wait(). Counts are elements; parts may have size 0. Sums of f16 and bf16 are as in the
/// session's own collectives. Errc::invalid_argument names what cannot be right. An operation that fails
/// later is this rank's failure, which ends the session for all ranks and names it.
class TrainerGroup {
 public:
  /// Its place among the group's operations.
  enum class Posted : std::uint64_t {};
  enum class Reduction : std::uint8_t { sum, average, min, max };
  using Counts = std::vector<std::size_t>;
  /// For an exchange: which input rows are sent, and which output rows receive what arrives, grouped by
  /// member. Counts remain elements and must be whole rows; output rows that are not listed stay unchanged.
  /// Without a list, rows are consecutive. Only for sessions whose collectives are on the host.
  struct Rows {
    std::size_t elements = 0;  ///< of a row; 0: there are no lists
    std::optional<std::vector<std::int64_t>> input;
    std::optional<std::vector<std::int64_t>> output;
  };
  /// This rank's operations, and the bytes that it must give to other members for them, whatever the back-end
  /// (as core::bytes_sent(); a broadcast's root gives its values to each of the others).
  struct Sent {
    std::int64_t launches = 0;
    std::int64_t bytes = 0;

    friend bool operator==(const Sent&, const Sent&) = default;
  };

  virtual ~TrainerGroup() = default;
  virtual const std::vector<core::Rank>& members() const = 0;
  virtual int index() const = 0;  ///< of this rank among the members
  /// Whether the rank's operations, of all its groups, run in the order in which they were asked for: one
  /// that waits for a peer then holds up all that follow.
  virtual bool runs_in_launch_order() const = 0;
  int size() const { return static_cast<int>(members().size()); }

  /// In place.
  virtual core::Result<Posted> all_reduce(gpu::BufferView values, core::DType dtype,
                                          Reduction reduction = Reduction::sum) = 0;
  /// `input` has `counts[i]` elements for member i; member i gets its part, summed.
  virtual core::Result<Posted> reduce_scatter(gpu::ConstBufferView input, gpu::BufferView output,
                                              core::DType dtype, Counts counts,
                                              Reduction reduction = Reduction::sum) = 0;
  /// Member i gives `counts[i]` elements; all get all, in group order.
  virtual core::Result<Posted> all_gather(gpu::ConstBufferView input, gpu::BufferView output,
                                          core::DType dtype, Counts counts) = 0;
  /// Gives `sent[i]` elements of `input` to member i and takes `taken[i]` from it, both in group order.
  virtual core::Result<Posted> all_to_all(gpu::ConstBufferView input, Counts sent, gpu::BufferView output,
                                          Counts taken, core::DType dtype, Rows rows) = 0;
  core::Result<Posted> all_to_all(gpu::ConstBufferView input, Counts sent, gpu::BufferView output,
                                  Counts taken, core::DType dtype) {
    return all_to_all(input, std::move(sent), output, std::move(taken), dtype, {});
  }
  /// Gives the values of member `root` to all, in place.
  virtual core::Result<Posted> broadcast(gpu::BufferView values, core::DType dtype, int root) = 0;
  /// To a member that receives as many elements. A send may last until its receive has begun.
  virtual core::Result<Posted> send(gpu::ConstBufferView values, core::DType dtype, int to) = 0;
  virtual core::Result<Posted> receive(gpu::BufferView values, core::DType dtype, int from) = 0;

  /// Makes what is enqueued on the compute stream from here on wait for the operation and those before it;
  /// without a compute stream the calling thread waits.
  virtual core::Result<void> wait(Posted posted) = 0;

  /// Since the session began.
  virtual Sent sent() const = 0;
};

}  // namespace troupe::actors
