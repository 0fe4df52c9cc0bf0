#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
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
#include "core/list.hpp"
#include "gpu/collective/part_counts.hpp"
#include "gpu/elements.hpp"
#include "gpu/order/task_order.hpp"
#include "gpu/slots.hpp"

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

  /// What was enqueued.
  struct Flight {
    std::vector<std::shared_ptr<gpu::OperationStatus>> operations;
    std::shared_ptr<std::atomic<std::int64_t>> began_ns;  ///< null: nothing was posted
    std::optional<core::Error> refused;                   ///< an operation could not be posted
    std::vector<std::function<void()>> then;  ///< called when all of it has succeeded, before anyone is told
  };
  /// An entry that is being carried out.
  struct Job {
    const PlannedLaunch& launch;
    core::Step step{};
    core::BucketIndex bucket{};
    core::ElementRange from;  ///< of the bucket's buffer: what it reads, or what a chunk reads
    core::ElementRange to;    ///< what it writes
    std::int64_t chunk = 0;
    std::size_t credit = 0;  ///< of staging
    Flight flight{};
    std::vector<gpu::BufferView> roots{};  ///< this rank's sums
    gpu::PartCounts input_counts{};
    gpu::PartCounts output_counts{};
    gpu::BufferView sent{};
    gpu::BufferView arrived{};
    std::vector<gpu::Elements> gathered{};  ///< by member: where what arrives belongs
    gpu::Slots terms{};                     ///< what has arrived, to be added
  };
  using Posted = core::Result<void>;

  State(gpu::Device& device, const TrainingPlan& plan, Options options);
  core::Result<void> open();

  core::Rank rank() const { return options.rank; }
  bool is_ordered() const { return plan.options.numerics == core::Numerics::ordered; }
  /// The factor applied to a gradient once everything is summed.
  float scale() const;
  /// What is applied of it before gradients are sent, in `fast` numerics.
  float scale_before(core::BucketIndex bucket) const;
  core::ElementRange optimizer_range(core::BucketIndex bucket) const {
    return program.held(plan.placements_of(bucket).optimizer, bucket);
  }
  core::DType gradient_dtype(core::BucketIndex bucket) const {
    return plan.buffers[plan.buckets[bucket].buffer].gradient_dtype;
  }

  const core::TensorClass& tensor_class(core::BucketIndex bucket) const {
    return plan.inputs.classes[plan.buckets[bucket].buffer.value];
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
  core::Result<void> check(const DataPlaneGroups& made) const;
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
  Flight carry_out(const std::vector<core::PlanEntryIndex>& entries);
  void gather_loaded();
  int gather_unit(const std::vector<core::BucketIndex>& wanted);
  void exchange_loaded(LoadedBytes bytes);
  template <class Over>
  void tell_over(Flight flight, gpu::Stream& stream, std::shared_ptr<const void> owner);

  // In launch.cpp: what an entry's recipe says is done, step by step.
  Posted carry_out(Job& job);
  Posted act(const std::vector<core::RecipeStep>& steps, Job& job);
  Job job_of(const PlannedLaunch& launch, core::Step step);
  Posted post_operation(gpu::Operation operation, Job& job);
  void fail(const LaunchCollective& work, Job job, const core::Error& error);
  void note_failure(const PlannedLaunch& launch, core::Step step);
  void trace_launch(const LaunchCollective& work, const Flight& flight, std::chrono::nanoseconds end);
  gpu::Stream& queue(const core::RecipeStep& step, const Job& job) {
    return *std::array{&stream_of(job.launch), &update}[static_cast<std::size_t>(step.queue)];
  }

  // In actions.cpp and reduction.cpp: what each action does.
  using Act = Posted (State::*)(const core::RecipeStep& step, Job& job);
  static const std::array<Act, core::kActions> kActs;
  Posted wait(const core::RecipeStep& step, Job& job);
  Posted record(const core::RecipeStep& step, Job& job);
  Posted reserve(const core::RecipeStep& step, Job& job);
  Posted carry(const core::RecipeStep& step, Job& job);
  Posted note(const core::RecipeStep& step, Job& job);
  Posted count(const core::RecipeStep& step, Job& job);
  Posted cut_sums(const core::RecipeStep& step, Job& job);
  Posted cut_part(const core::RecipeStep& step, Job& job);
  Posted cut_gather(const core::RecipeStep& step, Job& job);
  Posted cut_exchange(const core::RecipeStep& step, Job& job);
  Posted send(const core::RecipeStep& step, Job& job);
  Posted pack_part(const core::RecipeStep& step, Job& job);
  Posted pack_blocks(const core::RecipeStep& step, Job& job);
  Posted keep(const core::RecipeStep& step, Job& job);
  Posted post(const core::RecipeStep& step, Job& job);
  Posted post_blocks(const core::RecipeStep& step, Job& job);
  Posted accumulate_in(const core::RecipeStep& step, Job& job);
  Posted add_tree(const core::RecipeStep& step, Job& job);
  Posted add_in_order(const core::RecipeStep& step, Job& job);
  Posted add_members(const core::RecipeStep& step, Job& job);
  Posted unpack(const core::RecipeStep& step, Job& job);
  Posted unpack_blocks(const core::RecipeStep& step, Job& job);
  Posted unpack_others(const core::RecipeStep& step, Job& job);
  Posted round_sums(const core::RecipeStep& step, Job& job);
  Posted measure(const core::RecipeStep& step, Job& job);
  Posted clear(const core::RecipeStep& step, Job& job);
  Posted write_verdict(const core::RecipeStep& step, Job& job);
  Posted read_verdict(const core::RecipeStep& step, Job& job);
  Posted merged(const core::RecipeStep& step, Job& job);

  gpu::EventView event_of(core::Mark mark, const Job& job) const;
  gpu::BufferView memory_of(core::Place place, core::ElementRange range, const Job& job);
  void send_nothing(Job& job);
  void send_sum(Job& job);
  void send_packed(Job& job);
  void unpack_members(const core::RecipeStep& step, Job& job, std::size_t first, std::size_t end);
  gpu::Slots terms_of(const Job& job);
  gpu::BufferView sum_at(const KeptSum& sum, core::ElementRange whole, core::ElementRange range,
                         core::BucketIndex bucket, int full_slot) const;
  gpu::BufferView destination_of(const RootSum& sum, const Job& job) const;
  float factor_of(const core::RecipeStep& step) const { return std::array{1.0F, scale()}[step.scaled]; }
  /// Marks that the memory of the launch's full gradients holds zeros again, behind what cleared it.
  gpu::EventView cleared(const PlannedLaunch& launch) const {
    return launch.slot < 0 ? buckets[*launch.bucket]->cleared.get() : slot_cleared[launch.slot].get();
  }
  std::vector<core::ElementRange> counted_in_norms(core::BucketIndex bucket, core::ElementRange part) const;
  gpu::Stream& stream_of(const PlannedLaunch& launch) {
    return communication[static_cast<std::size_t>(launch.entry->stream)];
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
  bool is_registered = false;          ///< with a group
  DataPlaneGroups groups;              ///< not changed any more when they are used
  std::mutex groups_mutex;             // guards what follows, and `groups` while they are taken or aborted
  std::optional<core::Error> aborted;  ///< the first reason
  gpu::Stream compute;                 ///< null for trainers that compute on the host's thread
  gpu::Event read;     ///< on "compute": the trainer has read everything it reads of the step's parameters
  gpu::Event tensors;  ///< on "compute": the trainer's own tensors have been written
  std::vector<gpu::Event>
      released;  ///< on "compute" if it exists, by slot: its full parameters have been read
  gpu::Stream accumulate;
  std::vector<gpu::Stream> communication;  ///< by the program's streams
  gpu::Stream update;
  core::List<core::BucketIndex, std::unique_ptr<Bucket>> buckets;
  core::List<core::BucketIndex, std::vector<core::ElementRange>>
      measured;  ///< by bucket: what this rank counts in norms
  /// By parameter, of the optimizer's steps; empty: none. Not changed any more when there is a step.
  std::vector<std::int64_t> steps_missed;
  std::array<gpu::Event, Arena::kScratchCredits>
      credit_free;                           ///< on "update": the exchange's bytes were read
  core::List<int, gpu::Event> slot_cleared;  ///< as Bucket::cleared, by slot of the pool of gradients
  gpu::Event verdict_ready;
  std::size_t exchanges = 0;  ///< launched so far; only the Conductor launches
  std::size_t carries = 0;    ///< as above
  PrepareVerdict verdict;     ///< what the supervisor requested; read when the entry is launched
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
