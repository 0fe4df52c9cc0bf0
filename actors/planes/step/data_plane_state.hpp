#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/planes/step/arena.hpp"
#include "actors/planes/step/busy_time.hpp"
#include "actors/planes/step/data_plane.hpp"
#include "actors/planes/step/rank_program.hpp"
#include "gpu/elements.hpp"
#include "gpu/order/task_order.hpp"

namespace troupe::actors {

/// What DataPlane holds. Calls for one bucket come from one machine at a time; streams are thread safe.
struct DataPlane::State {
  struct Bucket {
    gpu::Event computed;    ///< on "compute": backward has added everything to the lane's gradients
    gpu::Event prepared;    ///< on "accumulate": the rank's sums are ready for the collective to read
    gpu::Event exchanged;   ///< on its stream: the last collective of gradients has delivered its data
    gpu::Event reduced;     ///< on "update": the sums of what it delivered are complete
    gpu::Event cleared;     ///< on "update": full gradients of its own are zeros, for the next lane
    gpu::Event updated;     ///< on "update": the optimizer has stepped this rank's shard
    std::size_t carry = 0;  ///< credit of the sums that go on to the next axis
    std::chrono::nanoseconds update_began{};  ///< accessed by notifications of "update" only
    bool is_acquired = false;  ///< the trainer may read its parameters, which are not on demand
    std::atomic<std::int64_t> optimizer_steps{0};
    std::atomic<std::int64_t> stepped{-1};  ///< the last decided step that was carried out
    std::atomic<std::int64_t> launched_ns{0};
  };

  /// One of the sums that an exchange leaves.
  struct RootSum {
    /// What it is the sum of, in the order of the tree: numbers of what was kept here before, then of what
    /// arrived.
    std::vector<std::size_t> terms;
    std::vector<core::TreeStep> steps;  ///< over places among the terms
    int slot = 0;                       ///< where it is kept, for an exchange whose sums are kept
  };

  /// What a launch has enqueued.
  struct Flight {
    std::vector<std::shared_ptr<gpu::OperationStatus>> operations;
    std::shared_ptr<std::atomic<std::int64_t>> began_ns;  ///< null: nothing was posted
  };
  using Posted = core::Result<void>;

  State(gpu::Device& device, const TrainingPlan& plan, Options options);
  core::Result<void> open();

  core::Rank rank() const { return options.rank; }
  /// Slots that hold something when a bucket's lanes are summed, in the order of the lanes: of the partial
  /// sums, or of a round's full gradients. The first is slot 0.
  std::vector<int> summed_slots(core::BucketIndex bucket, int round) const;
  bool is_ordered() const { return plan.options.numerics == core::Numerics::ordered; }
  /// The factor applied to a gradient once everything is summed.
  float scale() const;
  const core::Placements& resting_gradients() const { return plan.inputs.placements.gradients; }
  core::ElementRange optimizer_range(core::BucketIndex bucket) const {
    return program.held(plan.placements_of(bucket).optimizer, bucket);
  }
  core::DType gradient_dtype(core::BucketIndex bucket) const {
    return plan.buffers[plan.buckets[bucket.value].buffer.value].gradient_dtype;
  }

  const core::TensorClass& tensor_class(core::BucketIndex bucket) const {
    return plan.inputs.classes[plan.buckets[bucket.value].buffer.value];
  }

  /// What this rank keeps of a bucket's parameters.
  core::ElementRange kept(core::BucketIndex bucket) const {
    return program.held(plan.placements_of(bucket).parameters, bucket);
  }
  gpu::TaskOrder* order_of_trainer();

  void adopt(core::BucketIndex bucket);
  /// `part` is a range of the bucket's buffer inside optimizer_range().
  void adopt(core::BucketIndex bucket, core::ElementRange part);
  void prepare(const PrepareBucket& work);
  void round_lane(const PrepareBucket& work);
  void sum_lanes(const PrepareBucket& work);
  void add_slots(core::BucketIndex bucket, const std::vector<core::TreeStep>& steps);
  void launch(const LaunchCollective& work);
  void keep_verdict(const PrepareVerdict& work);
  bool clears_with_update(core::BucketIndex bucket) const;
  void clear_gradients(const StepShard& work);
  void step_shard(const StepShard& work);
  void carry_out(const StepShard& work);
  void take(DataPlaneGroups made);
  void abort(const core::Error& reason);
  void abort_groups();

  /// Whether the bucket's values are representable in microscaling blocks.
  bool has_blocks(core::BucketIndex bucket) const { return tensor_class(bucket).gathered.has_value(); }
  /// A range filled by one parameter, of a shard or of what is kept: the unit of optimizer settings.
  struct Segment {
    core::ElementRange in_buffer;
    std::int64_t in_shard = 0;
    core::ParameterIndex parameter{};
  };
  /// The segments of the parameters in a range of the bucket's buffer.
  std::vector<Segment> segments(core::BucketIndex bucket, core::ElementRange stretch) const;
  bool rounds_values() const;
  void round_values();
  void step_segment(core::BucketIndex bucket, const Segment& segment, const StepShard& work,
                    std::int64_t step);

  // In loaded.cpp.
  void gather_loaded();
  int gather_unit(const std::vector<core::BucketIndex>& wanted);
  void exchange_loaded(LoadedBytes bytes);
  template <class Over>
  void tell_over(Flight flight, gpu::Stream& stream, std::shared_ptr<const void> owner);

  // In exchange.cpp and reduction.cpp: they enqueue work, and add what they posted to the flight.
  Posted exchange(core::PlanEntryIndex index, Flight& flight);
  Posted exchange_chunk(core::PlanEntryIndex index, const std::vector<gpu::BufferView>& roots,
                        std::int64_t chunk, Flight& flight);
  Posted reduce(const PlannedLaunch& launch, Flight& flight);
  Posted gather_gradients(const PlannedLaunch& launch, Flight& flight);
  Posted gather_narrow(const PlannedLaunch& launch, std::int64_t chunk, Flight& flight);
  Posted sum_beyond_axes(core::PlanEntryIndex index, Flight& flight);
  /// What the launch starts from: this rank's sums, each over the part of the bucket it holds.
  std::vector<gpu::BufferView> roots_of(const PlannedLaunch& launch);
  bool is_first_of_round(const PlannedLaunch& launch) const;
  /// The launch leaves sums that wait for those of later rounds.
  bool rests(const PlannedLaunch& launch) const;
  /// Sums of earlier rounds, which are joined by what the launch brings.
  std::vector<gpu::BufferView> rested(const PlannedLaunch& launch, core::ElementRange range);
  void add_roots(core::PlanEntryIndex index, core::ElementRange range,
                 std::vector<gpu::ConstElements> arrived);
  void add_in_order(const RootSum& sum, std::span<const gpu::ConstElements> terms, gpu::Elements output);
  gpu::BufferView destination_of(const PlannedLaunch& launch, std::size_t root, int slot,
                                 core::ElementRange range);
  /// Marks that the memory of the launch's full gradients holds zeros again, behind what cleared it.
  gpu::EventView cleared(const PlannedLaunch& launch) const {
    return launch.slot < 0 ? buckets[launch.bucket->value]->cleared.get()
                           : slot_cleared[static_cast<std::size_t>(launch.slot)].get();
  }
  void end_reduction(const PlannedLaunch& launch, core::Step step, const Flight& flight);
  void measure(core::BucketIndex bucket);
  std::vector<core::ElementRange> counted_in_norms(core::BucketIndex bucket, core::ElementRange part) const;
  static RootSum sum_of_members(std::int64_t members);
  void plan_sums();

  // In launch.cpp.
  Posted gather_parameters(const PlannedLaunch& launch, Flight& flight);
  Posted gather_blocks(const PlannedLaunch& launch, gpu::BufferView input, gpu::BufferView output,
                       Flight& flight);
  Posted reduce_verdict(const PlannedLaunch& launch, Flight& flight);
  gpu::Operation operation(gpu::OperationKind kind, core::DType dtype) const;
  Posted post(const PlannedLaunch& launch, gpu::Operation operation, Flight& flight);
  gpu::Stream& stream_of(const PlannedLaunch& launch) {
    return communication[static_cast<std::size_t>(launch.entry.stream)];
  }
  void complete(const LaunchCollective& work, Flight flight);
  messages::Verdict verdict_of(std::span<const std::int64_t> words) const;
  void say(messages::Role role, std::uint32_t index, messages::Message message);
  void trace_span(const char* track, std::string name, std::chrono::nanoseconds begin,
                  std::chrono::nanoseconds end, std::uint64_t flow);

  gpu::Device& device;
  const TrainingPlan& plan;
  Options options;
  RankProgram program;
  Arena arena;
  DataPlaneGroups groups;              ///< not changed any more when they are used
  std::mutex groups_mutex;             // guards what follows, and `groups` while they are taken or aborted
  std::optional<core::Error> aborted;  ///< the first reason
  gpu::Stream compute;                 ///< null for trainers that compute on the host's thread
  gpu::Event read;     ///< on "compute": the trainer has read everything it reads of the step's parameters
  gpu::Event tensors;  ///< on "compute": the trainer's own tensors have been written
  std::vector<gpu::Event> released;  ///< on "compute", by slot: its full parameters have been read
  gpu::Stream accumulate;
  std::vector<gpu::Stream> communication;  ///< by the program's streams
  gpu::Stream update;
  std::vector<std::unique_ptr<Bucket>> buckets;
  /// By parameter, of the optimizer's steps; empty: none. Not changed any more when there is a step.
  std::vector<std::int64_t> steps_missed;
  std::array<gpu::Event, Arena::kScratchCredits>
      credit_free;                       ///< on "update": the exchange's bytes were read
  std::vector<gpu::Event> slot_cleared;  ///< as Bucket::cleared, by slot of the pool of gradients
  gpu::Event verdict_ready;
  std::size_t exchanges = 0;               ///< launched so far; only the Conductor launches
  std::size_t carries = 0;                 ///< as above
  std::vector<std::vector<RootSum>> sums;  ///< for each launch that is an exchange
  PrepareVerdict verdict;                  ///< what the supervisor requested; read when the entry is launched
  std::vector<std::int64_t> expert_counts;      ///< of this rank
  std::vector<std::int64_t> all_expert_counts;  ///< of all ranks
  std::mutex verdict_mutex;                     // guards verdict, counts and what is next
  core::Step verdict_launched{-1};              ///< guarded by verdict_mutex, as the next three
  core::Step verdict_arrived{-1};
  std::vector<std::int64_t> arrived_words;  ///< of that verdict
  core::Step reduction_failed{-1};          ///< the last step of which a reduction has failed here
  core::Step refused{-1};                   ///< the last step after which all gradients were cleared
  std::mutex refused_mutex;                 // guards refused
  /// Guards the order of what uses the arena's optimizer scratch: a step is one task of a host's stream, but
  /// several kernels of a GPU's, and those of two buckets must not come between each other.
  std::mutex scratch_mutex;
  /// What may no longer be read is overwritten, so that a trainer that still reads it is detected.
  bool poisons = false;
  BusyTime communicating;
  BusyTime updating;
};

}  // namespace troupe::actors
