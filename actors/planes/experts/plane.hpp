#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/planes/step/trainer_tensor.hpp"
#include "actors/planes/step/training_plan.hpp"
#include "actors/roles/expert_group.hpp"
#include "actors/roles/work.hpp"
#include "actors/shell/inline_role.hpp"
#include "core/experts/exchange.hpp"
#include "core/experts/row_move.hpp"
#include "core/result.hpp"
#include "gpu/device.hpp"

namespace troupe::actors {

/// Brings counts and rows to the ranks that share experts, on the trainer's thread.
class RowCarrier {
 public:
  virtual ~RowCarrier() = default;
  /// The counts of all members, by member. Waits for them. `what` names them in an Error.
  virtual core::Result<std::vector<std::vector<std::int64_t>>> gather(const std::vector<std::int64_t>& own,
                                                                      const std::string& what) = 0;
  /// Begins to move rows; one move at a time. The memory stays as it is until wait().
  virtual core::Result<void> begin(gpu::ConstBufferView input, gpu::BufferView output,
                                   const core::RowMove& move, std::size_t row_bytes,
                                   const std::string& what) = 0;
  /// The rows may be read, by this thread or on the compute stream.
  virtual core::Result<void> wait() = 0;
};

/// What the ExpertGroups of a rank ask for, and the memory of what they own: router biases and loads, as
/// checkpoints keep them. The groups run on the trainer's thread (InlineRole), which makes all calls but
/// those that say otherwise.
class ExpertPlane {
 public:
  struct Options {
    core::Rank rank{};
    core::Epoch epoch{};
    InlineRole::Ways ways;  ///< its `perform` brings ExpertWork back to perform()
  };
  /// `plan` and `device` outlive it. Null where TrainingOptions::experts has no layer with experts.
  static core::Result<std::unique_ptr<ExpertPlane>> create(gpu::Device& device, const TrainingPlan& plan,
                                                           Options options);

  /// Before the first exchange.
  void connect(RowCarrier& carrier) { carrier_ = &carrier; }

  bool has(std::uint32_t layer) const { return layer < layers_.size() && layers_[layer].role != nullptr; }
  /// Whether gradients are added to memory of each source (Session::sources()).
  bool keeps_sources_apart() const { return plan_.options.numerics == core::Numerics::ordered; }
  std::uint32_t layer_count() const { return static_cast<std::uint32_t>(layers_.size()); }
  /// The layers that have experts: "0, 2".
  std::string layers() const;
  const core::ExpertLayerOptions& options(std::uint32_t layer) const { return plan_.options.experts[layer]; }
  const ExpertGroupConfig& group(std::uint32_t layer) const { return layers_[layer].config; }
  /// (E); empty without biases.
  std::span<const float> bias(std::uint32_t layer) const { return layers_[layer].bias; }
  /// (E), of all ranks and all decided steps since the run began.
  std::span<const std::int64_t> chosen(std::uint32_t layer) const { return layers_[layer].chosen; }
  std::span<const std::int64_t> dropped(std::uint32_t layer) const { return layers_[layer].dropped; }

  struct Planned {
    std::uint64_t exchange = 0;
    core::ExpertExchange plan;
  };
  /// Begins an exchange, in a lane of the step, or in the step but in no lane (-2), or in none.
  core::Result<Planned> count(std::uint32_t layer, std::optional<core::Lane> lane,
                              std::vector<std::int64_t> counts, std::int64_t dropped);
  /// Where rows are that shall move, and of which size.
  struct Rows {
    gpu::ConstBufferView input;
    gpu::BufferView output;
    std::size_t row_bytes = 0;
  };
  /// Begins to move rows of an exchange; one move at a time.
  core::Result<void> begin(std::uint32_t layer, std::uint64_t exchange, messages::RowsGo go,
                           const core::RowMove& move, const Rows& rows);
  core::Result<void> wait();
  void count_load(std::uint32_t layer, std::vector<std::int64_t> chosen, std::vector<std::int64_t> dropped);

  void begin_step(const messages::StepBegan& begun);
  /// Before the step's verdict. Errc::invalid_argument names an exchange whose rows have not come back.
  core::Result<void> may_finish() const;
  /// Why no rank may commit the step; empty: nothing is wrong.
  std::string refusal() const;
  /// What this rank adds to the verdict: chosen and dropped of each layer.
  std::vector<std::int64_t> counts() const;
  /// `sums` are those of all ranks, in the same order.
  void decided(const messages::StepDecided& decided, std::span<const std::int64_t> sums);
  void failed(const core::Error& why);

  /// What checkpoints keep: one tensor of biases, and one of loads, per layer. Their memory is the plane's.
  std::vector<TrainerTensor> tensors() const;
  /// The key of such a tensor: a checkpoint from before there were any has none of them.
  static bool is_key(std::string_view key);
  /// That memory was loaded.
  void restored();
  /// From elsewhere than a tensor. Errc::mismatch for a bias or counts of another layer.
  core::Result<void> restore(std::uint32_t layer, std::vector<float> bias, std::vector<std::int64_t> chosen,
                             std::vector<std::int64_t> dropped);

  void perform(const ExpertWork& work) { work_.push_back(work); }
  /// Who waits for whom; from any thread.
  std::vector<WaitReport> reports() const;

 private:
  struct Layer {
    ExpertGroupConfig config;
    ExpertGroupMachine* machine = nullptr;  ///< of the role
    std::unique_ptr<InlineRole> role;       ///< null: the layer has no experts
    gpu::BufferView bias_memory, load_memory;
    std::span<float> bias;
    std::span<std::int64_t> chosen, dropped;
  };
  /// The move that has begun.
  struct Moving {
    std::uint32_t layer = 0;
    std::uint64_t exchange = 0;
    messages::RowsGo go = messages::RowsGo::out;
    std::int64_t sent = 0, taken = 0;
  };

  ExpertPlane(gpu::Device& device, const TrainingPlan& plan, Options options);
  core::Result<void> open();
  void hear(std::uint32_t layer, messages::Message message) { layers_[layer].role->hear(std::move(message)); }
  template <class Kind>
  core::Result<Kind> answer();
  void keep(const KeepExpertState& state);
  void keep_all();

  gpu::Device& device_;
  const TrainingPlan& plan_;
  Options options_;
  RowCarrier* carrier_ = nullptr;
  std::vector<Layer> layers_;
  gpu::Buffer memory_;
  std::deque<ExpertWork> work_;  ///< asked for, and not yet done
  std::optional<Moving> moving_;
  std::uint64_t exchanges_ = 0;
  core::Step step_{-1};
};

}  // namespace troupe::actors
