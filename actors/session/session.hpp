#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "actors/session/options.hpp"
#include "actors/session/outcomes.hpp"
#include "core/checkpoint/manifest_object.hpp"
#include "core/dtype.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"
#include "core/trace.hpp"
#include "core/values/value.hpp"
#include "gpu/buffer.hpp"
#include "gpu/stream.hpp"

namespace troupe::actors {

class RankWorld;
struct DeviceMemory;
struct TrainingPlan;

/// A trainer's side of the runtime: parameters go in, backward says which gradients are ready, committed
/// steps come out. It belongs to one thread. A failed session (peer lost, plans differ, deadline) answers
/// every call with the first Error; leave it and start again. A call out of turn, or about a parameter that
/// does not exist, is Errc::invalid_argument, which says what should have been called, and changes nothing.
///
///     session->begin_step(learning_rate);
///     for (core::Lane lane : session->lanes()) {
///       session->begin_lane(lane);
///       for (int m = 0; m < microbatches; ++m) {
///         session->begin_microbatch(m);
///         ...forward: before_use(p), then read parameter(p); backward: add to gradient(p), then
///         gradient_ready(p)
///       }
///       session->end_lane(loss);  // or with a weight, such as the lane's number of target tokens
///     }
///     auto outcome = session->finish_step();
class Session {
 public:
  /// Joins the job of `world`, which must outlive the session and has no other; all ranks call it with the
  /// same parameters and options. Returns when all ranks are there and agree; Errc::mismatch names the first
  /// difference. What ranks have alike is in docs/agreement.md.
  static core::Result<std::unique_ptr<Session>> join(RankWorld& world, SessionOptions options,
                                                     std::vector<core::ParameterSpec> parameters);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  core::Rank rank() const;
  core::WorldSize world_size() const;
  /// The parameters in the order in which the trainer registered them.
  std::span<const core::ParameterSpec> parameters() const;
  /// The options with defaults filled in (the number of lanes).
  const core::TrainingOptions& training() const;
  /// What all ranks agreed on. For programs in this tree: actors/planes/step/training_plan.hpp, which defines
  /// it, is not installed.
  const TrainingPlan& plan() const;
  /// The lanes this rank plays, in order.
  std::vector<core::Lane> lanes() const;

  /// Units that parameters name, where the strategy shards parameters or gradients; otherwise 0.
  std::uint32_t units() const;
  /// Sets a parameter's initial values, before the first step and the first save; after restore() it replaces
  /// what was loaded. Calls `fill` with the first element of the range that this rank keeps, and the memory
  /// for the range's values, in f32: of a narrow parameter they are what its fp32 master begins with. An
  /// element must have the same value on every rank that asks for it. Not called where this rank keeps none.
  core::Result<void> write_parameter(
      core::ParameterIndex index,
      const std::function<void(std::int64_t first, std::span<float> values)>& fill);

  /// What the optimizer keeps of a parameter, in f32, between steps: `state` is a name of docs/optimizers.md,
  /// such as "exp_avg". Calls `take` with the first element of the range that this rank's optimizer steps,
  /// and the range's values. Not called where this rank steps none of it.
  core::Result<void> read_state(
      core::ParameterIndex index, std::string_view state,
      const std::function<void(std::int64_t first, std::span<const float> values)>& take);
  /// Replaces it before the first step and the first save. Values are as for write_parameter().
  core::Result<void> write_state(
      core::ParameterIndex index, std::string_view state,
      const std::function<void(std::int64_t first, std::span<float> values)>& fill);
  /// Steps that the optimizer has taken, by parameter; a frozen one misses none.
  core::Result<std::vector<std::int64_t>> steps_taken() const;
  /// Makes it go on as if it had taken these, before the first step and the first save: the session's next
  /// step comes after the most of them. By all ranks alike.
  core::Result<void> write_steps_taken(std::span<const std::int64_t> steps);

  /// The parameter's values. The trainer writes them before the first step (the same on every rank; sharded
  /// ones, and all after restore(), by write_parameter()), and reads them after before_use(), or while the
  /// unit is acquired. T is float
  /// for f32, std::uint16_t for the bits of bf16 and f16, or std::byte for any; others are
  /// Errc::invalid_argument. Errc::unavailable where only the device reaches the memory.
  template <class T = float>
  core::Result<std::span<T>> parameter(core::ParameterIndex index) {
    const auto memory = TROUPE_TRY(readable_parameter(index, element_of<T>()));
    return memory.template as<T>();
  }
  /// Where to add the current lane's gradient, after before_use(): only within a lane, and fetched anew in
  /// every lane. Where there are units(), write it, and call gradient_ready(), while the parameter's unit is
  /// acquired in backward. Gradients are f32 unless
  /// TrainingOptions::gradients_in_parameter_dtype; T is as for parameter(). A frozen parameter has none:
  /// Errc::invalid_argument, as for gradient_ready().
  template <class T = float>
  core::Result<std::span<T>> gradient(core::ParameterIndex index, std::optional<int> source = {}) {
    const auto memory = TROUPE_TRY(readable_gradient(index, source, element_of<T>()));
    return memory.template as<T>();
  }
  /// How many gradients are kept apart here for this parameter, per round: 1; for experts
  /// (ParameterSpec::is_expert) the size of group "ep", of whose ranks each is a source, by its index in the
  /// group; for a rank with P pieces of a lane (TrainingOptions::context_pieces) times P, piece p of index i
  /// being i * P + p. Each source has its own gradient memory. Call gradient_ready() when all are added.
  core::Result<int> sources(core::ParameterIndex index) const;
  /// The same memory for kernels, wherever it is.
  core::Result<gpu::BufferView> parameter_memory(core::ParameterIndex index) const;
  core::Result<gpu::BufferView> gradient_memory(core::ParameterIndex index,
                                                std::optional<int> source = {}) const;
  /// A stream of the device, for trainers that enqueue their passes instead of computing on their own thread.
  /// After before_use() reads of the parameter may be enqueued on it, up to finish_step(), whose update comes
  /// after them. What has been enqueued so far is covered by gradient_ready(), by begin_step() where it
  /// writes first values, and by save() where it writes SessionOptions::tensors. First asked for before the
  /// first step. The trainer itself waits for losses, before end_lane(), and for streams of its own, before
  /// any of these calls.
  core::Result<gpu::StreamView> compute_stream();

  /// This rank's group of SessionOptions::groups; the session owns it. Errc::invalid_argument lists the
  /// groups that exist.
  core::Result<TrainerGroup*> group(std::string_view name);

  /// A layer of TrainingOptions::experts (actors/session/trainer_group.hpp); the session owns it.
  /// Errc::invalid_argument lists the layers that have experts.
  core::Result<ExpertLayer*> experts(std::uint32_t layer);

  /// After save() and save_local() it waits until the trainer's own tensors are copied: they may change from
  /// here until the next save. The same rate on all ranks, finite and not negative. The first one compares
  /// first values (SessionOptions::first_values).
  core::Result<void> begin_step(double learning_rate);
  /// What the trainer multiplies the losses of the step by before backward, where
  /// TrainingOptions::loss_scaling asks for it; otherwise 1. The loss given to end_lane(), and everything an
  /// outcome says about gradients, is without it. Valid until finish_step(), which sets it for the next step.
  double loss_scale() const;
  core::Result<void> begin_lane(core::Lane lane);
  /// From 0, in order. A lane begins with microbatch 0.
  core::Result<void> begin_microbatch(int index);
  /// Replaces begin_lane() and begin_backward() where SessionOptions::passes is given and there are units():
  /// the calls that follow belong to this pass, counted from 0, until the next one begins. Passes come in the
  /// order of the list, without those of rounds in which the rank has no lane; end_lane() comes after the
  /// last pass of each lane. Units are acquired in the order of the pass.
  core::Result<void> begin_pass(std::size_t pass);
  /// Waits until the unit's parameters may be read and, after begin_backward(), its gradients written; fetch
  /// their memory anew afterwards. Forward acquires units in ascending order, backward in descending order,
  /// unless SessionOptions::order says otherwise; acquiring a unit releases the previous one. Where there
  /// are no units(), it is before_use() of each of the unit's parameters, in any order, and release() does
  /// nothing.
  core::Result<void> acquire(core::UnitIndex unit);
  /// The unit is no longer read, and its gradients of this lane are complete.
  core::Result<void> release(core::UnitIndex unit);
  /// Forward of the lane has ended. Needed where there are units(), allowed anywhere.
  core::Result<void> begin_backward();
  /// Waits until the parameter's update and gather of the previous step have ended. Needed before the first
  /// read in a step; cheap when there is nothing to wait for. Acquires the parameter's unit, if it has one:
  /// then it is needed before the first read in forward and in backward.
  core::Result<void> before_use(core::ParameterIndex parameter);
  /// The parameter's gradient of this microbatch has been added. Only the lane's last microbatch counts. Call
  /// it for every use of a parameter that is used several times.
  core::Result<void> gradient_ready(core::ParameterIndex parameter);
  /// The lane counts as one of the job's lanes: `loss` is its mean, and so is what it adds to gradients, for
  /// each microbatch.
  core::Result<void> end_lane(double loss);
  /// `loss` and what all microbatches of the lane have added to gradients are sums over `weight` targets,
  /// such as the tokens that a language model learns; those of the step are divided by the sum of all lanes'
  /// weights, which is exact, so that each target counts alike wherever it is. A lane, or a piece of one,
  /// without targets has weight 0; a step without any is not committed. Weights are given in every lane of a
  /// step or in none. Ranks that compute the same loss, as those of "tp" and of earlier pipeline stages do,
  /// count once. See TrainingOptions::loss_divisor.
  core::Result<void> end_lane(double loss, double weight);
  /// For a rank with several pieces of a lane (TrainingOptions::context_pieces): those of each, in order. The
  /// step's loss and weight are the exact sums, however the pieces are dealt over ranks.
  core::Result<void> end_lane(std::span<const PieceLoss> pieces);
  /// A non-empty `refusal` asks that no rank commits the step, and says why. `wishes` are bits of Wish, which
  /// all ranks learn of in this step's outcome.
  core::Result<StepOutcome> finish_step(std::string refusal = {}, std::uint32_t wishes = 0);

  /// Saves the state after the last finished step in the background. Returns at once; the next update of a
  /// bucket waits until the bucket is copied, and the trainer's own tensors must not change before
  /// begin_step(). Called between steps, by all ranks alike. `common` is kept from rank 0, `objects` from
  /// every rank; a cell of one that comes twice fails the save. Errc::unavailable without storage,
  /// Errc::invalid_argument for values that cannot be stored or take more than 256 KiB.
  core::Result<std::uint64_t> save(const core::Value& common = {},
                                   const std::vector<core::ManifestObject>& objects = {});
  /// Saves that have ended since the last call, in order. Never waits.
  std::vector<SaveResult> take_saves();
  /// Waits until every save that was begun has ended.
  core::Result<void> wait_saves();
  /// Like save(), into the local tier: every rank's state on its own node, and copies of it at the other
  /// ranks of its clique. The save counts when all of them are there; then older ones are removed.
  /// Errc::unavailable where no place for it is configured.
  core::Result<std::uint64_t> save_local(const core::Value& common = {});
  /// Like take_saves() and wait_saves(), for local saves.
  std::vector<SaveResult> take_local_saves();
  core::Result<void> wait_local_saves();
  /// Where the job has gone on in a new epoch (ProcessWorld::form_anew(), or a process that was started for
  /// it): the newest step that the ranks have in memory, together. Ranks that lack a part of the state get it
  /// from others. What any rank was told to be decided is not lost, unless nobody has the lost rank's part:
  /// then this is empty, as in a first epoch, and the trainer writes first values and calls restore().
  /// Otherwise it does neither, and takes the next step (next_step()). Called right after join(), before
  /// parameters are looked at, by all ranks alike. Empty for sessions with experts or with
  /// SessionOptions::tensors.
  core::Result<std::optional<Restored>> recover();
  /// Loads the newest complete checkpoint, or the named one. All ranks load the same, saved by any number of
  /// ranks with any strategy. A local save at least as new takes precedence if a job with the same
  /// parameters, strategy and number of ranks made it and every clique still holds a full set of copies;
  /// ranks that lost theirs get them from their cliques. Called before the first step, by all ranks alike.
  /// Empty when there is no checkpoint; an Error when there are some and none can be loaded. Where names or
  /// shapes do not fit nothing was overwritten, and the session is as before.
  core::Result<std::optional<Restored>> restore(const RestoreOptions& options = {});

  /// This rank gives up, and every other rank is told why. Returns the job's first failure: `reason`, unless
  /// another came before it.
  core::Error abandon(core::Error reason);

  /// Waits until every parameter kept here holds the last decided step: before reading parameters between
  /// steps, or at the end. save() and leave() need no such call.
  core::Result<void> publish_all();
  /// Between steps: until end_evaluation(), which comes before the next step, parameters may be read with
  /// before_use() and acquire(), in any order and any number of times. Where parameters are sharded, all
  /// ranks do so alike, unit by unit.
  core::Result<void> begin_evaluation();
  core::Result<void> end_evaluation();
  /// Before the first step, instead of SessionOptions::order: the trainer goes once through a microbatch
  /// of a lane of its own, as in a step but without begin_lane() and end_lane(), and end_learning()
  /// returns the order in which it used units. Each unit is gathered when it is acquired, by all ranks
  /// alike; gradients, and gradient_ready(), have no effect. Errc::invalid_argument for a unit that is
  /// used again, and with SessionOptions::passes. Allowed where there are no units(): then there is
  /// nothing to learn.
  core::Result<void> begin_learning();
  /// Steps follow that order from now on; units that were not used come last. It is the same on all ranks
  /// that keep the same part of the model: Errc::mismatch names the first difference, and the job ends.
  core::Result<core::DeclaredOrder> end_learning();
  /// Leaves normally, when all ranks do. Only the observers below may be called after it.
  core::Result<void> leave();

  /// Nothing is traced from now on; a long run's trace of every step would be larger than useful.
  void stop_tracing();
  /// This rank's trace so far; empty unless asked for.
  std::vector<core::TraceEvent> take_trace();
  /// Describes who waits for whom; may be called from another thread while the session is used.
  std::string waits();
  std::uint64_t message_count() const;
  /// Microseconds from the last gradient of a bucket to its launch, for those of the last step's buckets that
  /// no earlier launch held up.
  const std::vector<double>& launch_latencies_us() const;
  /// How much of the device's memory this rank holds, by purpose, until the session is destroyed. For
  /// programs in this tree: actors/planes/step/device_memory.hpp, which defines it, is not installed;
  /// device_bytes() is the sum.
  const DeviceMemory& device_memory() const;
  std::size_t device_bytes() const;
  /// What the plan says about device_memory(), as above; at rest the two differ by rounding for alignment.
  DeviceMemory planned_memory() const;
  core::Step next_step() const;

 private:
  struct Parts;
  /// What a span of T may hold.
  enum class Element : std::uint8_t { bytes, f32, bits16, other };
  template <class T>
  static constexpr Element element_of() {
    if constexpr (std::is_same_v<std::remove_cv_t<T>, std::byte>) return Element::bytes;
    if constexpr (std::is_same_v<std::remove_cv_t<T>, float>) return Element::f32;
    if constexpr (std::is_same_v<std::remove_cv_t<T>, std::uint16_t>) return Element::bits16;
    return Element::other;
  }
  core::Result<gpu::BufferView> readable_parameter(core::ParameterIndex index, Element element) const;
  core::Result<gpu::BufferView> readable_gradient(core::ParameterIndex index, std::optional<int> source,
                                                  Element element) const;

  explicit Session(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace troupe::actors
