#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/dtype.hpp"
#include "core/ids.hpp"
#include "core/plan/terms.hpp"
#include "core/result.hpp"
#include "gpu/buffer.hpp"
#include "gpu/collective/part_counts.hpp"
#include "gpu/device.hpp"
#include "gpu/stream.hpp"

namespace troupe::gpu {

class FlightRecorder;

enum class OperationKind : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all,
  send,
  receive,
  barrier,
};
std::string_view name_of(OperationKind kind) noexcept;
/// The operation that carries it out.
OperationKind kind_of(core::CollectiveKind kind) noexcept;

/// All back-ends that Troupe itself implements sum f16 and bf16 in fp32 in rank order, with one rounding at
/// the end; f8 types can be moved but not reduced. `average` divides the fp32 sum before rounding and is for
/// floating types. Integer sums and products wrap around. `bit_and`, `bit_or` and `bit_xor` are for integers
/// and booleans, which have min and max besides, and nothing else. A NaN anywhere makes min and max NaN.
///
/// With `nccl` the arithmetic is NCCL's: the order of sums depends on sizes and links, f16 and bf16 may be
/// rounded at every hop, `average` multiplies by 1/n in the element's type before the sum, min and max may
/// lose a NaN, and 16-bit integers, products and bit operations end in Errc::unavailable. Integers and
/// moved bytes are exact.
enum class ReduceOp : std::uint8_t { sum, average, min, max, product, bit_and, bit_or, bit_xor };
/// bit_and, bit_or or bit_xor.
bool is_of_bits(ReduceOp reduce) noexcept;

/// Which rows of its buffers an all_to_all moves, in the order in which it would otherwise find them: those
/// to or from member 0 first. So a back-end that copies anyway gathers and scatters on the way. Without a
/// list, rows are consecutive from the beginning of the buffer. Counts must then be given, in whole rows. An
/// input row may be listed several times, an output row once; unlisted rows stay unchanged. For host memory
/// only: with `nccl` an operation with lists is Errc::unavailable.
struct RowLists {
  std::size_t elements = 0;  ///< per row; 0: there are no lists
  std::optional<std::vector<std::int64_t>> input;
  std::optional<std::vector<std::int64_t>> output;
};

/// One collective from one rank's view. n = group size, r = this rank's index in the group. Counts are in
/// elements.
///
// clang-format off
/// | kind           | input                                       | output                                | counts |
/// |----------------|---------------------------------------------|---------------------------------------|--------|
/// | all_reduce     | count                                       | count (may be the input)              | none |
/// | reduce_scatter | sum of output_counts                        | output_counts[r]; may be the input's part r | output_counts (n), equal on all |
/// | all_gather     | input_counts[r]; may be the output's part r | sum of input_counts                   | input_counts (n), equal on all |
/// | broadcast      | at `peer`: count                            | elsewhere: count; at `peer` the input or nothing | none |
/// | all_to_all     | sum of input_counts, in rank order          | sum of output_counts, in rank order; no overlap | both (n); input_counts[j] here = output_counts[r] at j |
/// | send, receive  | send: count                                 | receive: count                        | none; `peer` is the other |
/// | barrier        | nothing                                     | nothing                               | none |
// clang-format on
///
/// Empty counts mean even parts: the total must then be divisible by n. Zero-sized parts are legal
/// everywhere. An all_to_all may list rows (RowLists): its counts are then those of the listed rows only. A
/// send may last until its receive begins: to do both at the same time, post them together on two streams. A
/// broadcast may end at its root before others have begun it; then the root hears of a mismatch or a loss in
/// its next operation.
struct Operation {
  OperationKind kind = OperationKind::barrier;
  core::DType dtype = core::DType::f32;
  ReduceOp reduce = ReduceOp::sum;
  ConstBufferView input;
  BufferView output;
  PartCounts input_counts;
  PartCounts output_counts;
  RowLists rows;
  int peer = 0;  ///< root of a broadcast, or the other side of send and receive, as an index in the group
  /// From the moment the operation starts on its stream; when it expires, the operation ends in Errc::timeout
  /// and the group is unusable.
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
  // For the flight record alone: the step and the unit of the model that it belongs to, -1 for none.
  core::Step step{-1};
  std::int32_t unit = -1;
};

/// The state of a posted operation. Shared by the poster and the stream; thread-safe.
class OperationStatus {
 public:
  OperationStatus() = default;
  /// For a back-end whose device runs on its own: `look` calls finish() if the stream has passed the
  /// operation. It is called on every query.
  explicit OperationStatus(std::function<void()> look) : look_(std::move(look)) {}

  /// Empty while it runs; then success or the Error. Valid once the stream has passed the operation.
  std::optional<core::Result<void>> result() const {
    std::function<void()> look;
    {
      std::lock_guard lock(mutex_);
      if (result_ || !look_) return result_;
      look = look_;
    }
    look();
    std::lock_guard lock(mutex_);
    return result_;
  }
  /// Only the first call has an effect.
  void finish(core::Result<void> result) {
    std::function<void()> look;
    std::lock_guard lock(mutex_);
    if (result_) return;
    result_ = std::move(result);
    look.swap(look_);
  }

 private:
  mutable std::mutex mutex_;  // guards result_ and look_
  std::optional<core::Result<void>> result_;
  std::function<void()> look_;
};

/// An operation and its stream.
struct Posting {
  Operation operation;
  StreamView stream = nullptr;
};

/// A communicator: the members of one epoch that run collectives together. All members post the same
/// operations in the same order. Streams continue past a failed operation, so the poster must check the
/// status: its output is then undefined, but for what an all_gather, or a broadcast's root, has as its input
/// too. So a rank's own part of a gathered buffer outlives whatever happens to the others. After any failure
/// other than Errc::invalid_argument the group is unusable and every later operation ends in the first error:
/// create a new group in a new epoch.
class Group {
 public:
  virtual ~Group() = default;

  virtual int index() const = 0;  ///< this rank's place in the group, from 0
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;

  /// Enqueues the operation on `stream`. Buffers must stay alive and untouched until the stream has passed
  /// it. Errc::invalid_argument (naming the field) for errors visible on this rank alone; the group then
  /// stays usable. Errors visible only across ranks (different kinds, counts or dtypes) end in Errc::mismatch
  /// naming the rank and the field, where the back-end can see it (all but nccl), never in a hang.
  virtual core::Result<std::shared_ptr<OperationStatus>> post(Operation operation, StreamView stream) = 0;

  /// Runs an operation on host memory in the calling thread, when those posted before have ended; otherwise
  /// as post(). Errc::unavailable from a back-end whose operations run on streams only.
  virtual core::Result<void> run(Operation operation);

  /// Posts messages that may need each other: only this way do a member's send and receive on two streams run
  /// at the same time with every back-end. Either all are accepted, or none runs.
  virtual core::Result<std::vector<std::shared_ptr<OperationStatus>>> post_together(
      std::vector<Posting> postings);

  /// Announces the memory that later operations will read and write, so that a back-end may move it without
  /// extra copies. A collective of all members, each with its own memory, ordered among the operations like
  /// any other; it blocks, for no longer than finding the members may take. True if all memory of all members
  /// is prepared, false if none is, which changes no result. An Error is as for an operation: the group is
  /// unusable. Only memory from CollectiveBackend::allocate() can be prepared.
  virtual core::Result<bool> use_memory(std::span<const BufferView> memory) {
    (void)memory;
    return false;
  }

  /// From any thread, at any time, idempotent: running and later operations end in `reason` soon (100 ms).
  virtual void abort(core::Error reason) = 0;
};

/// How members find each other before a group exists; the caller scopes it to one job and epoch.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual core::Result<void> set(const std::string& key, const std::string& value) = 0;
  /// Waits until the key exists. Errc::timeout names the key.
  virtual core::Result<std::string> get(const std::string& key, std::chrono::nanoseconds deadline) = 0;
};

struct GroupOptions {
  std::string job;  ///< identifies the job in shared resources; letters, digits, '-' and '_'
  core::Epoch epoch{};
  std::string name;                 ///< identifies the group, for example "dp"; same characters
  std::vector<core::Rank> members;  ///< in group order
  core::Rank self{};
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);  ///< to find all members
  /// Where operations are recorded; shared by the rank's groups and its session. Null: nowhere.
  std::shared_ptr<FlightRecorder> recorder = nullptr;
};

/// Creates groups of one kind.
class CollectiveBackend {
 public:
  virtual ~CollectiveBackend() = default;
  virtual std::string_view name() const = 0;  ///< "simulated", "shared_memory", "tcp", "nccl"
  /// Memory of `device`, like Device::allocate(), for operations of this back-end's groups. Drain the streams
  /// before releasing it; groups may outlive it, and it may outlive the back-end. Call it before anything
  /// runs on the device: it may wait for all of it.
  virtual core::Result<Buffer> allocate(Device& device, std::size_t bytes) { return device.allocate(bytes); }
  /// Whether devices may run operations of different groups one after another, in posting order. Then all
  /// ranks must post all their operations in the same order.
  virtual bool runs_in_launch_order() const { return false; }
  /// Called by all members; returns when all have joined.
  virtual core::Result<std::unique_ptr<Group>> create_group(GroupOptions options) = 0;
};

}  // namespace troupe::gpu
