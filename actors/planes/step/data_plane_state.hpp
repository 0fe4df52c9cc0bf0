#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/planes/step/arena.hpp"
#include "actors/planes/step/busy_time.hpp"
#include "actors/planes/step/data_plane.hpp"

namespace troupe::actors {

/// What DataPlane holds. Calls concerning one bucket come from one machine at a time; streams are thread
/// safe.
struct DataPlane::State {
  struct Bucket {
    gpu::Event computed;   ///< on "compute": backward has added all it adds to the lane's gradients
    gpu::Event prepared;   ///< on "accumulate": the rank's partial sums are complete
    gpu::Event exchanged;  ///< on "communication": its collective has brought what it brings
    gpu::Event reduced;    ///< on "update": the reduced gradient lies in slot 0
    gpu::Event updated;    ///< on "update": the optimizer has stepped this rank's shard
    std::chrono::nanoseconds update_began{};  ///< touched by notifications of "update" only
    std::atomic<std::int64_t> optimizer_steps{0};
    std::atomic<std::int64_t> launched_ns{0};
  };

  State(gpu::Device& device, const TrainingPlan& plan, Options options);

  core::Rank rank() const { return options.rank; }
  int slot_of(core::Lane lane) const;
  /// Slots that hold something when a bucket is reduced, from 0.
  int reduced_slots() const;
  bool is_ordered() const { return plan.options.numerics == core::Numerics::ordered; }
  /// What multiplies a gradient once everything is summed.
  float scale() const;
  const core::LaneRange& held() const { return plan.lanes[static_cast<std::size_t>(rank().value)]; }

  void adopt(core::BucketIndex bucket);
  /// `part` is a range of the bucket's buffer inside of state_range().
  void adopt(core::BucketIndex bucket, core::ElementRange part);
  void prepare(const PrepareBucket& work);
  void launch(const LaunchCollective& work);
  void keep_verdict(const PrepareVerdict& work);
  void step_shard(const StepShard& work);
  void abort(const core::Error& reason);

  // In update.cpp.
  struct Segment;
  std::vector<Segment> segments(core::BucketIndex bucket) const;
  void step_segment(core::BucketIndex bucket, const Segment& segment, const StepShard& work,
                    std::int64_t step);

  // In loaded.cpp.
  void gather_loaded();
  void exchange_loaded(LoadedBytes bytes);
  void tell_gathered(std::vector<std::shared_ptr<gpu::OperationStatus>> operations,
                     std::shared_ptr<const void> owner);

  // In reduction.cpp. They enqueue and return the status of the collective they posted, if they posted one.
  using Posted = core::Result<std::shared_ptr<gpu::OperationStatus>>;
  Posted exchange(core::BucketIndex bucket);
  Posted reduce(core::BucketIndex bucket);
  Posted reduce_across_instances(core::BucketIndex bucket);
  Posted gather_gradients(core::BucketIndex bucket);
  Posted gather_parameters(core::BucketIndex bucket);
  Posted reduce_verdict();
  void measure(core::BucketIndex bucket);
  void pack(core::BucketIndex bucket, gpu::BufferView outgoing);
  gpu::Operation operation(gpu::OperationKind kind, core::DType dtype) const;
  /// Sizes in elements of the parts of a bucket that the ranks own, in rank order.
  std::vector<std::size_t> shard_sizes(core::BucketIndex bucket) const;
  void mark_begin();
  void complete(const LaunchCollective& work, std::shared_ptr<gpu::OperationStatus> status);
  void say(messages::Role role, std::uint32_t index, messages::Message message);
  void trace_span(const char* track, std::string name, std::chrono::nanoseconds begin,
                  std::chrono::nanoseconds end, std::uint64_t flow);
  static std::uint64_t flow_of(const core::PlanEntry& entry, core::Step step);

  gpu::Device& device;
  const TrainingPlan& plan;
  Options options;
  Arena arena;
  DataPlaneGroups groups;
  gpu::Stream compute;  ///< null for trainers that compute on the host's thread
  gpu::Event read;      ///< on "compute": the trainer has read what it reads of the step's parameters
  gpu::Stream accumulate;
  gpu::Stream communication;
  gpu::Stream update;
  std::vector<std::unique_ptr<Bucket>> buckets;
  std::array<gpu::Event, Arena::kScratchCredits>
      credit_free;  ///< on "update": the exchange's bytes were read
  gpu::Event verdict_ready;
  std::size_t exchanges = 0;              ///< launched so far; only the Conductor launches
  std::vector<core::TreeStep> finishing;  ///< over the roots of all ranks
  PrepareVerdict verdict;                 ///< what the supervisor asked for; read when the entry is launched
  std::mutex verdict_mutex;               // guards verdict
  std::atomic<std::int64_t> operation_began_ns{0};  ///< of what "communication" carries now; 0: nothing
  std::atomic<std::int64_t> communication_ns{0};
  BusyTime updating;
};

}  // namespace troupe::actors
