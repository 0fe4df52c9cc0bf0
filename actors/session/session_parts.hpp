#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "actors/planes/step/data_plane.hpp"
#include "actors/planes/step/state.hpp"
#include "actors/planes/step/training_plan.hpp"
#include "actors/roles/rank_supervisor.hpp"
#include "actors/session/alike_calls.hpp"
#include "actors/session/call_order.hpp"
#include "actors/session/checkpoint_tier.hpp"
#include "actors/session/context.hpp"
#include "actors/session/expert_layers.hpp"
#include "actors/session/groups.hpp"
#include "actors/session/host_exchange.hpp"
#include "actors/session/local_tier.hpp"
#include "actors/session/pace.hpp"
#include "actors/session/saves.hpp"
#include "actors/session/sequencer.hpp"
#include "actors/session/session.hpp"
#include "actors/session/step_meter.hpp"
#include "actors/session/trainer_inbox.hpp"
#include "actors/session/trainer_tensors.hpp"
#include "actors/session/unit_gate.hpp"
#include "actors/session/values.hpp"
#include "actors/session/work_router.hpp"
#include "actors/shell/rank_world.hpp"
#include "actors/shell/tracer.hpp"
#include "core/checkpoint/steps_missed.hpp"
#include "core/optimizer/loss_scaler.hpp"
#include "core/step_count.hpp"

namespace troupe::actors {

/// What a session owns, in the order in which it is made: what is below may use what is above it.
struct Session::Parts {
  Parts(RankWorld& rank_world, SessionOptions wanted, TrainingPlan planned);
  ~Parts();

  core::Result<void> open();
  core::Result<void> describe_configuration();
  core::Result<void> open_experts();
  core::Result<void> open_planes();
  core::Result<std::unique_ptr<DataPlane>> make_data(const DataPlane::Options& plane);
  core::Error give_up(core::Error reason);
  /// What all ranks do together: if its deadline passes, the session has failed.
  core::Result<void> in_time(core::Result<void> done);
  RankWorld::Hooks hooks();
  std::vector<WaitReport> wait_reports();
  void spawn_membership(RankSupervisorConfig supervisor);
  void spawn_roles();
  core::Result<void> connect();
  GroupMaker group_maker() { return {world, *rendezvous, options.join_deadline}; }
  std::chrono::nanoseconds trainer_deadline() const { return 3 * options.step_deadline; }
  std::vector<TrainerGroupSpec> trainer_groups() const;
  /// The trainer has collectives of its own, and devices that run all in the order of their launches.
  bool launches_in_order() const {
    return !trainer_groups().empty() && collectives && (*collectives)->runs_in_launch_order();
  }
  core::Result<void> end_lane(std::span<const PieceLoss> pieces);
  /// A call out of turn; once the session has failed, that failure comes before it.
  core::Result<void> in_turn(core::Result<void> called) const;
  /// Errc::invalid_argument: there is no such parameter, or it is frozen.
  core::Result<void> has_gradient(core::ParameterIndex index) const;
  /// Errc::invalid_argument: out of turn, or a save has begun, which may still read what the call would
  /// write.
  core::Result<void> may_write_values(std::string_view call) const;
  core::Result<void> has_source(core::ParameterIndex index, std::optional<int> source) const;
  core::Result<void> check_readable(core::ParameterIndex index, core::DType dtype, Element element) const;
  /// What all ranks must have given to the step alike.
  std::vector<std::string> alike() const;
  core::Result<void> agree_on_first_values();
  /// If the trainer wants it and has not made it after this step; within a call that all ranks make alike.
  core::Result<void> compare_replicas(messages::Call call);
  core::Result<void> publish_all();
  /// From the first step on, units in this order, which all ranks have agreed on.
  core::Result<void> follow(const core::DeclaredOrder& units_order);
  /// Waits until the lane's gradients are out of memory that the next lane writes; those of units in a pool
  /// are waited for when their slot is used again.
  core::Result<void> wait_merged(core::Lane played);
  Saves::Progress progress() const {
    return {core::steps_before(step), optimizer_steps, steps_missed,
            scaler.is_dynamic() ? std::optional(scaler.state()) : std::nullopt, last};
  }

  core::Result<void> go_on_from(Saves::Progress from);
  /// Whether what this rank has in memory can be of use to another epoch.
  bool may_keep_state() const { return world.may_go_on() && !has_own_tensors && !experts; }
  /// And all ranks' trainers will ask for it.
  bool is_kept_for_recovery() const { return recovers && may_keep_state(); }
  core::Result<void> let_others_join();
  void note_begun(const messages::StepBegan& step_begun);
  /// What this process could go on from in another epoch is given to the world.
  void leave_remains();

  RankWorld& world;
  SessionOptions options;
  std::unique_ptr<TrainingPlan> own_plan;  ///< outlives the session where its memory does
  TrainingPlan& plan;
  core::LossScaler scaler;
  std::unique_ptr<Tracer> tracer;
  TrainerInbox inbox;
  std::unique_ptr<gpu::Rendezvous> rendezvous;
  core::Result<gpu::CollectiveBackend*> collectives = nullptr;  ///< the world's
  std::unique_ptr<DataPlane> data;
  std::unique_ptr<ExpertPlane> experts;  ///< null without layers of experts
  std::optional<ExpertLayers> layers;    ///< as above
  bool has_own_tensors = false;          ///< the trainer has: beside those of experts
  RankState rank_state;                  ///< what this rank could save
  std::vector<gpu::BufferView> memory;   ///< of its pieces
  std::optional<SessionContext> context;
  std::unique_ptr<CheckpointTier> checkpoints;  ///< null without a place for them
  std::unique_ptr<LocalTier> local;             ///< null without a place for local copies
  std::unique_ptr<HostExchange> hosts;          ///< null where the data plane moves memory of the host
  std::unique_ptr<ReplicaCheck> replica_check;  ///< null unless replicas are compared
  std::optional<WorkRouter> router;
  std::optional<StepMeter> meter;
  std::optional<Saves> saves;
  std::optional<CallOrder> order;
  std::optional<Values> values;
  std::optional<AlikeCalls> calls;
  std::optional<UnitGate> gate;
  std::optional<Sequencer> sequencer;
  TensorKeys tensor_keys;

  bool others_stand_by = false;  ///< after the last step
  bool ends_for_others = false;  ///< the epoch ends so that they join
  bool recovers = false;         ///< recover() was called, as on all ranks
  /// Like core::Survivor::origin; 0 as long as this rank does not have a whole state.
  std::uint64_t origin = 0;
  std::vector<messages::StepBegan> begun;  ///< the last two steps
  std::optional<StepOutcome> last;         ///< of what was decided, here or before
  core::Step step{0};                      ///< the step that is being computed, or comes next
  core::Step decided{-1};
  core::Lane lane{-1};
  core::StepCount optimizer_steps{};
  core::StepsMissed steps_missed;
  std::uint64_t restores = 0;
  std::vector<messages::LaneLoss> losses;
  double learning_rate = 0;  ///< of the step
  bool has_agreed = false;   ///< on first values
  std::uint64_t first_values_compared = 0;
  std::uint64_t programs_checked = 0;
  Pace pace;
  core::StepCount compared{};  ///< after how many steps replicas were compared last
};

}  // namespace troupe::actors
