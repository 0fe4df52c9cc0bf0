#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/checkpoint/load_exchange.hpp"
#include "actors/checkpoint/plane.hpp"
#include "actors/checkpoint_coordinator/machine.hpp"
#include "actors/engine/data_plane.hpp"
#include "actors/engine/job.hpp"
#include "actors/session/host_exchange.hpp"
#include "actors/session/local_tier.hpp"
#include "actors/session/port.hpp"
#include "actors/session/rank_world.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/strictness.hpp"
#include "core/checkpoint/value.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::actors {

struct RestoreChoice;
struct Wanted;

/// How a session saves and loads; where is the world's business (RankWorld::storage).
struct CheckpointOptions {
  /// Most memory for state that is copied but not written yet; a smaller state takes less. A smaller budget
  /// makes the next update wait for the disk; nothing else depends on it.
  std::uint64_t staging_bytes = std::uint64_t{256} << 20;
  std::uint64_t chunk_bytes = std::uint64_t{8} << 20;  ///< staged and written at once
  Retention retention;
  WhenBusy when_busy = WhenBusy::queue;
  LoadOptions load;                                              ///< who reads what in a restore
  std::chrono::nanoseconds deadline = std::chrono::minutes(30);  ///< of a phase of a save, and of a restore
};

/// The end of a save, the same on every rank.
struct SaveResult {
  std::uint64_t sequence = 0;    ///< as save() returned it
  core::Step step{};             ///< steps that were committed before
  std::string name;              ///< "step_00000200"; empty when not committed
  std::uint64_t bytes = 0;       ///< of all tensors
  std::string warning;           ///< something to look at, though the checkpoint is good
  core::Result<void> committed;  ///< or why not: rank, file and reason
};

struct RestoreOptions {
  Storage* from = nullptr;  ///< null: the world's storage
  std::string name;         ///< of a checkpoint in it; empty: the newest one that is whole
  bool optimizer = true;    ///< otherwise weights only: moments and counters begin anew
  /// About tensors that only the job or only the checkpoint has. What the checkpoint lacks and the mode
  /// tolerates keeps its values. A local save has exactly the tensors of its job.
  core::Strictness strictness = core::Strictness::raise_unexpected;
};

struct Restored {
  std::string name;
  core::Step step{};     ///< the next one
  core::Value common;    ///< as save() was given it
  core::Value topology;  ///< of the job that saved
  std::vector<std::string>
      passed_over;        ///< newer checkpoints and local saves that could not be used, and why
  bool is_local = false;  ///< from the local tier
  core::KeySet
      unexpected{};        ///< keys of this rank that the checkpoint lacks, where the strictness returns them
  core::KeySet missing{};  ///< keys that only the checkpoint has, likewise
};

struct SessionOptions {
  TrainingOptions training;
  /// Tensors of the trainer's own, which saves and restores take along. Ranks may have different ones; all
  /// their parts together must make up whole tensors.
  std::vector<TrainerTensor> tensors{};
  CheckpointOptions checkpoint;
  LocalTierOptions local;
  std::chrono::nanoseconds join_deadline = std::chrono::seconds(60);
  /// After this a collective counts as hung. The trainer itself waits three times as long: what it waits for
  /// has a deadline of its own, whose error says more.
  std::chrono::nanoseconds step_deadline = std::chrono::seconds(300);
  /// Record what actors, streams and the trainer do (take_trace()). Tasks of streams are those of the whole
  /// device: sessions that share one can not all be traced.
  bool trace = false;
};

/// Where a step's time went, of this rank. "Exposed" is time in which the trainer waited for the runtime and
/// computed nothing, also not on its compute stream.
struct StepTimes {
  std::chrono::nanoseconds total{};
  std::chrono::nanoseconds exposed{};
  std::chrono::nanoseconds
      exposed_communication{};  ///< the part of it in which the communication stream was busy
  std::chrono::nanoseconds exposed_optimizer{};  ///< of the rest, the part in which the optimizer was
  std::chrono::nanoseconds communication{};      ///< the communication stream was busy, hidden or not
  std::chrono::nanoseconds optimizer{};  ///< the update stream was stepping the optimizer, hidden or not

  std::chrono::nanoseconds compute() const { return total - exposed; }
  /// Exposed, and for nothing of the device that is measured: messages, sums over lanes, other ranks.
  std::chrono::nanoseconds other_waits() const { return exposed - exposed_communication - exposed_optimizer; }
};

struct StepOutcome {
  core::Step step{};
  bool committed = false;
  std::string reason;          ///< why not, when not committed; parameters are then as before the step
  std::vector<double> losses;  ///< one a lane of the job, the same on every rank
  double loss = 0;             ///< their mean, added in lane order
  double gradient_norm = 0;    ///< before clipping
  double clip_factor = 1;
  std::uint32_t wishes = 0;  ///< of all ranks
  StepTimes times;
};

/// A trainer's side of the runtime: parameters go in, backward says which gradients are ready, committed
/// steps come out. One thread uses it. A failed session (peer lost, plans differ, deadline) answers every
/// call with the first Error; leave it and start again.
///
///     session->begin_step(learning_rate);
///     for (core::Lane lane : session->lanes()) {
///       session->begin_lane(lane);
///       for (int m = 0; m < microbatches; ++m) {
///         session->begin_microbatch(m);
///         ...forward: before_use(p), then read parameter(p); backward: add to gradient(p), then
///         gradient_ready(p)
///       }
///       session->end_lane(loss);
///     }
///     auto outcome = session->finish_step();
class Session {
 public:
  /// Joins the job of `world`, which must outlive the session: all ranks call it with the same parameters and
  /// options. Returns when all ranks are there and agree; Errc::mismatch names the first difference.
  static core::Result<std::unique_ptr<Session>> join(RankWorld& world, SessionOptions options,
                                                     std::vector<ParameterSpec> parameters);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  core::Rank rank() const;
  core::WorldSize world() const;
  const Job& plan() const { return job_; }
  /// The lanes this rank plays, in order.
  std::vector<core::Lane> lanes() const;

  /// The parameter's values. Written by the trainer before the first step (the same on every rank), read
  /// after before_use().
  template <class T = float>
  std::span<T> parameter(std::uint32_t index) {
    return data_plane_->parameter(index).as<T>();
  }
  /// For trainers that enqueue their passes instead of computing on their own thread: a stream of the device.
  /// After before_use() it may be given reads of the parameter, up to finish_step(), whose update comes after
  /// them; gradient_ready() then means what it has been given so far. Ask before the first step; losses are
  /// for the trainer to wait for, before end_lane().
  core::Result<gpu::StreamView> compute_stream() { return data_plane_->compute_stream(); }

  /// Where the current lane's gradient is to be added, after before_use(). Fetch it anew in every lane.
  template <class T = float>
  std::span<T> gradient(std::uint32_t index) {
    return data_plane_->gradient(index, lane_).as<T>();
  }

  /// After save() and save_local() it waits until tensors of the trainer's own are copied: they may change
  /// from here to the next save.
  core::Result<void> begin_step(double learning_rate);
  core::Result<void> begin_lane(core::Lane lane);
  void begin_microbatch(int index);
  /// Waits until the parameter's update and gather of the step before are over. Needed before the first read
  /// in a step; cheap when there is nothing to wait for.
  core::Result<void> before_use(std::uint32_t parameter);
  /// The parameter's gradient of this microbatch is added. Only the lane's last microbatch counts. A
  /// parameter used several times says so every time.
  void gradient_ready(std::uint32_t parameter);
  void end_lane(double loss);
  /// `refusal`, when not empty, asks that no rank commits the step, and why.
  /// `wishes` are bits of messages::Wish, which all ranks learn of in this step's outcome.
  core::Result<StepOutcome> finish_step(std::string refusal = {}, std::uint32_t wishes = 0);

  /// Saves the state of after the last finished step in the background: returns at once, and the next update
  /// of a bucket waits until the bucket is copied; tensors of the trainer's own must not change before
  /// begin_step(). Between steps, by all ranks alike. `common` is kept of
  /// rank 0, `objects` of every rank. Errc::unavailable without storage, Errc::invalid_argument for values
  /// that can not be stored or take more than 256 KiB.
  core::Result<std::uint64_t> save(const core::Value& common = {},
                                   const std::vector<core::ManifestObject>& objects = {});
  /// Saves that have ended since the last call, in order. Never waits.
  std::vector<SaveResult> take_saves();
  /// Waits until every save that was begun is over.
  core::Result<void> wait_saves();
  /// As save(), into the local tier: every rank's state on its own node, and copies of it at the other ranks
  /// of its clique. Counts when all of them are there; then older ones go. Errc::unavailable without a place
  /// for it.
  core::Result<std::uint64_t> save_local(const core::Value& common = {});
  /// As take_saves() and wait_saves(), of local saves.
  std::vector<SaveResult> take_local_saves();
  core::Result<void> wait_local_saves();
  /// Loads the newest checkpoint that is whole, or the one that is named; all ranks load the same, saved by
  /// any number of ranks with any strategy. A local save that is not older comes first: every clique must
  /// hold all its copies, saved by as many ranks of the same job; copies that ranks have lost come from their
  /// cliques. Before the first step, by all ranks alike. Nothing when there is no checkpoint; an Error when
  /// there are some and none can be loaded.
  core::Result<std::optional<Restored>> restore(const RestoreOptions& options = {});

  /// This rank gives up, and every other rank is told why. Returns the job's first failure, which is `reason`
  /// unless another came before it.
  core::Error abandon(core::Error reason);

  /// Waits until every parameter holds the last decided step. Before evaluation, saving, or the end.
  core::Result<void> publish_all();
  /// Leaves in good order, when all ranks do. Nothing may be called after it but the observers below.
  core::Result<void> leave();

  /// What happens from now on is not traced; a long run's trace of every step would be larger than useful.
  void stop_tracing();
  /// This rank's trace so far; empty unless asked for.
  std::vector<core::TraceEvent> take_trace();
  /// Who waits for whom; may be called from another thread while the session is used.
  std::string waits();
  std::uint64_t message_count() const { return world_.message_count(); }
  /// Microseconds from the last gradient of a bucket to its launch, of the last step's buckets that no
  /// earlier launch held up.
  const std::vector<double>& launch_latencies_us() const { return launch_latencies_us_; }
  std::size_t device_bytes() const { return data_plane_->allocated_bytes(); }
  core::Step next_step() const { return step_; }

 private:
  Session(RankWorld& world, SessionOptions options, Job job);
  core::Result<void> open();
  void spawn_parts();
  void spawn_checkpoint_roles();
  core::Result<void> connect_groups();
  core::Result<std::unique_ptr<gpu::Group>> make_group(gpu::CollectiveBackend& backend, std::string name,
                                                       std::vector<core::Rank> members);
  core::Result<std::unique_ptr<gpu::Group>> make_host_group(std::string name,
                                                            std::vector<core::Rank> members);
  void post(messages::Role role, std::uint32_t index, messages::Message message);
  core::Result<void> exposed(const std::function<core::Result<void>()>& wait);
  void note_latencies();
  void end_profile();
  core::Result<void> open_checkpoints();
  core::Result<void> open_local_tier();
  core::Result<void> connect_local_tier();
  core::Result<messages::SaveBegan> save_message(const core::Value& common) const;
  void adopt();
  core::Value topology() const;
  core::Result<void> agree_on_tensors();
  void hold_tensors(messages::Role writer, std::uint64_t save);
  core::Result<void> wait_tensors();
  struct Restoring;
  core::Result<void> share_holdings(const std::string& attempt, Restoring& restoring);
  core::Result<RestoreChoice> choose(const std::string& attempt, Restoring& restoring);
  core::Result<std::optional<Restored>> attempt_restore(const std::string& key, const RestoreChoice& choice,
                                                        Restoring& restoring, const RestoreOptions& options);
  void note_damage(const core::CopyName& name, Restoring& restoring) const;
  core::Result<Wanted> want(const core::Manifest& manifest, const RestoreOptions& options,
                            Restoring& restoring, Restored& restored);
  core::Result<Restored> load(Restoring& restoring, const std::string& name, const RestoreOptions& options);
  core::Result<void> finish_load(Restoring& restoring, const std::string& name);
  core::Result<void> make_uploads(Restoring& restoring);
  core::Result<void> load_local(const core::CopyName& name, const std::vector<core::CopyTransfer>& transfers,
                                Restoring& restoring);
  core::Result<void> retrieve_local(const core::CopyName& name,
                                    const std::vector<core::CopyTransfer>& transfers);
  core::Result<Restored> take_over(const std::string& attempt, const core::CopyName& name);
  void go_on_after(core::Step step, std::int64_t optimizer_steps);
  core::Result<std::string> agree_on_load(const std::string& attempt, const std::string& complaint);
  std::chrono::nanoseconds trainer_deadline() const { return 3 * options_.step_deadline; }

  RankWorld& world_;
  SessionOptions options_;
  Job job_;
  std::unique_ptr<Tracer> tracer_;
  TrainerPort port_;
  std::unique_ptr<gpu::Rendezvous> rendezvous_;
  core::Result<gpu::CollectiveBackend*> collectives_ = nullptr;  ///< the world's
  std::unique_ptr<DataPlane> data_plane_;
  RankState state_;                        ///< what this rank could save
  std::vector<gpu::BufferView> memory_;    ///< of its pieces
  std::vector<core::KeySet> tensor_keys_;  ///< of the trainer's tensors, per rank
  std::unique_ptr<CheckpointPlane> checkpoint_plane_;
  std::unique_ptr<LocalTier> local_;             ///< null without a place for local copies
  std::unique_ptr<HostExchange> host_exchange_;  ///< null where the data plane moves memory of the host
  std::uint64_t saves_begun_ = 0;
  std::uint64_t local_saves_begun_ = 0;
  std::uint64_t restores_ = 0;
  std::int64_t optimizer_steps_ = 0;
  core::Step step_{0};  ///< the step that is being computed, or comes next
  core::Step decided_{-1};
  core::Lane lane_{-1};
  bool last_microbatch_ = true;
  bool adopted_ = false;
  bool is_profiled_ = false;  ///< a profiler has heard of the step's beginning, not of its end
  std::vector<messages::LaneLoss> losses_;
  std::vector<std::chrono::nanoseconds> last_gradient_;  ///< per bucket
  std::chrono::nanoseconds step_began_{};
  Exposure exposed_;  ///< of the step so far
  DataPlaneTimes times_before_;
  std::vector<double> launch_latencies_us_;
};

}  // namespace troupe::actors
