#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"
#include "gpu/buffer.hpp"

namespace troupe::core {
struct Dispatch;
struct ExpertExchange;
struct RowMove;
}  // namespace troupe::core

namespace troupe::actors {

/// A way of cutting all ranks of a job into groups, for the trainer's own collectives: those of tensor
/// parallelism, of experts, of pipeline stages. The same on all ranks.
struct TrainerGroupSpec {
  std::string name;  ///< letters, digits, '-' and '_'
  /// Every rank is in exactly one of these, in group order. Empty: one group of all ranks, however many an
  /// epoch has.
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

/// Where the tokens of a microbatch go in a layer of experts. N tokens, K choices of each, S slots: the
/// choices that are kept, by expert, and within an expert by token. Where data-parallel ranks keep parts of
/// experts (TrainingOptions::expert_tensor_parallel), a choice is one for each part of its expert: K counts
/// all of them, with the weight of the choice each, and the sums over them add the parts.
struct ExpertRouting {
  /// Rows of one rank's tokens among those that come here, for one expert.
  struct Product {
    std::uint32_t expert = 0;  ///< among those here
    int source = 0;            ///< the rank's index, from which Session::sources() has the source
    std::size_t first = 0, end = 0;
  };

  std::uint64_t exchange = 0;
  std::size_t choices = 0;                   ///< K
  std::vector<std::int32_t> experts;         ///< (N, K), best first
  std::vector<float> weights;                ///< (N, K)
  std::vector<std::int64_t> choice_of_slot;  ///< (S): token * K + choice
  std::vector<std::int64_t> slot_of_choice;  ///< (N, K); -1: its expert had no room
  std::vector<Product> products;             ///< of all experts here, by expert and then by source
  std::size_t received = 0;                  ///< rows that come here, for these
  std::vector<std::int64_t> sent, taken;     ///< rows to and from each rank of group "ep"

  // For rows of `width` floats in host memory, in the order of sums on which bits depend.

  /// Slots (S, width): the rows of their tokens (N, width).
  std::vector<float> gather(std::size_t width, std::span<const float> tokens) const;
  /// Tokens (N, width): the sums of weight times slot, the best choice first.
  std::vector<float> weigh(std::size_t width, std::span<const float> slots) const;
  struct Gradients {
    std::vector<float> slots;    ///< (S, width)
    std::vector<float> weights;  ///< (N, K)
  };
  /// The gradients of weigh(), from those of its result.
  Gradients weigh_backward(std::size_t width, std::span<const float> slots,
                           std::span<const float> d_tokens) const;
};

/// A layer of experts (TrainingOptions::experts), whose experts the ranks of group "ep" share: it decides
/// where tokens go, brings rows to their experts and back, and counts. All ranks of the group make the same
/// calls in the same order, on the trainer's thread. In each microbatch: route(), dispatch(), a product for
/// each of ExpertRouting::products, combine(); in backward, with gradients, dispatch() and combine() again
/// (the latter may be left out), and to Session::gradient(parameter, source) the product with the rows of
/// each source. So the bits do not depend on how many ranks share the experts.
///
/// A call out of turn is Errc::invalid_argument, and changes nothing. When more rows would come to a rank
/// than ExpertLayerOptions::most_rows, no choice of the microbatch is kept, on any rank of the group, and no
/// rank commits the step, whose outcome says why; outside of a step the call is Errc::out_of_memory.
class ExpertLayer {
 public:
  virtual ~ExpertLayer() = default;
  virtual int experts_here() const = 0;
  virtual int first_expert() const = 0;        ///< of those here, by its number among all
  virtual std::int64_t most_rows() const = 0;  ///< that ExpertRouting::received may be

  /// The bias of each expert; empty without ExpertLayerOptions::bias_rate. They move in finish_step(), when
  /// the step is committed, and are saved and restored with the parameters.
  virtual std::span<const float> bias() const = 0;
  /// How often all tokens of all ranks have chosen each expert since the run began, and how often of these it
  /// had no room. They grow in finish_step(), and are saved and restored.
  virtual std::span<const std::int64_t> chosen() const = 0;
  virtual std::span<const std::int64_t> dropped() const = 0;

  /// What tokens with these logits (N, experts) choose: the best scores, with the biases, which do not weigh.
  /// `logits` are in host memory. Waits for the other ranks' counts.
  virtual core::Result<ExpertRouting> route(std::span<const float> logits) = 0;
  /// Adds to d_logits (N, experts) the gradient through the weights, from that by them, (N, K).
  virtual core::Result<void> route_backward(const ExpertRouting& routes, std::span<const float> logits,
                                            std::span<const float> d_weights, std::span<float> d_logits) = 0;
  /// Brings the rows of slots (S) to their experts, as rows that products read (received), or in backward
  /// gradients by what came back. Memory as for TrainerGroup: with a compute stream rows may be read by what
  /// is enqueued after the call, otherwise when it returns.
  virtual core::Result<void> dispatch(const ExpertRouting& routes, gpu::ConstBufferView slots,
                                      gpu::BufferView rows, std::size_t row_bytes) = 0;
  /// The way back: rows (received) of what experts made of them, to the slots (S) of their tokens.
  virtual core::Result<void> combine(const ExpertRouting& routes, gpu::ConstBufferView rows,
                                     gpu::BufferView slots, std::size_t row_bytes) = 0;

  // For programs in this tree that decide by themselves where tokens go, and whose rows move beside other
  // work (core/experts, which is not installed).

  struct Planned {
    std::uint64_t exchange = 0;
    const core::ExpertExchange* plan = nullptr;  ///< until the next call
  };
  virtual core::Result<Planned> plan(const core::Dispatch& dispatch) = 0;
  /// Rows of an exchange begin to go out, or back; one move at a time, over all layers.
  virtual core::Result<void> begin(std::uint64_t exchange, bool out, const core::RowMove& move,
                                   gpu::ConstBufferView input, gpu::BufferView output,
                                   std::size_t row_bytes) = 0;
  virtual core::Result<void> wait() = 0;
  /// This rank's tokens of the step: how often each expert was chosen, and had no room.
  virtual core::Result<void> count(std::vector<std::int64_t> chosen, std::vector<std::int64_t> dropped) = 0;
  /// State that a checkpoint has elsewhere: from before it was in tensors of its own.
  virtual core::Result<void> restore(std::vector<float> bias, std::vector<std::int64_t> chosen,
                                     std::vector<std::int64_t> dropped) = 0;
};

}  // namespace troupe::actors
