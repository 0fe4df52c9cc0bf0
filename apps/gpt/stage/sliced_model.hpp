#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "apps/gpt/model/share.hpp"
#include "apps/gpt/stage/group_relay.hpp"
#include "apps/gpt/stage/slice_group.hpp"
#include "apps/gpt/stage/trainable_model.hpp"

namespace troupe::apps::gpt {

/// The whole model on one rank, computed in the slices that a group of tensor-parallel ranks computes, with
/// their sums in their order: the same bits as theirs in `ordered` numerics. It is meant for comparison, not
/// speed: each pass copies the parameters, each slice is computed by its own thread, which the call starts
/// and waits for, and gradients are reported when all are complete.
///
/// A gradient that is also a sum over the slices (SharedParameter::also_sum) is summed in the order in which
/// ranks sum theirs: for each slice the lanes, then the pieces of sequences, and then the slices. So it is
/// added in the step's last lane, and among ranks that share sequences on the first one; elsewhere it is
/// zero.
class SlicedModel final : public TrainableModel {
 public:
  /// share.index is ignored. A step has this many lanes, and all of them are the model's. `context`, which
  /// must outlive the model, may share the sequences, whose whole text passes are given.
  static core::Result<std::unique_ptr<SlicedModel>> create(const ModelConfig& config, BatchShape shape,
                                                           Keep keep, const TensorShare& share, int lanes,
                                                           TensorGroup<float>* context = nullptr);

  const ModelConfig& config() const override { return slices_.front().model->config(); }
  const ParameterTable& table() const override { return shared_->whole(); }
  BatchShape shape() const override { return slices_.front().model->shape(); }
  core::DType dtype() const override { return core::DType::f32; }
  std::size_t activation_bytes() const override;

  core::Result<void> forward_backward(Parameters parameters, Gradients gradients, Tokens tokens,
                                      Tokens targets, const StepHooks& hooks) override;
  core::Result<void> forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                                  const StepHooks& hooks) override;
  core::Result<std::vector<double>> take_losses() override;
  ExpertTally take_expert_tally() override;
  core::Result<std::span<const float>> logits(Parameters parameters, Tokens tokens,
                                              const StepHooks& hooks) override;

 private:
  /// A member with its parameters, and the gradients of the lane so far.
  struct Slice {
    std::unique_ptr<SliceGroup<float>> group;
    std::unique_ptr<TrainableModel> model;
    std::vector<std::vector<float>> parameters, gradients;
    /// By parameter, for those that are also summed: the gradients of each lane of the step so far.
    std::vector<std::vector<std::vector<float>>> lanes;
    std::vector<const std::byte*> readable;
    std::vector<float*> places;
  };

  SlicedModel() = default;
  core::Result<void> copy_parameters(Parameters parameters, const StepHooks& hooks);
  core::Result<void> give_gradients(Gradients gradients, const StepHooks& hooks);
  /// A lane of a parameter that is also summed is complete: returns what it adds to the session's gradient.
  core::Result<std::vector<float>> next_sum(std::size_t parameter);
  /// Runs `pass` on every slice concurrently.
  core::Result<void> together(const std::function<core::Result<void>(Slice&)>& pass);

  std::unique_ptr<SliceGroup<float>::Room> room_;
  TensorGroup<float>* context_ = nullptr;      ///< null if sequences are whole
  std::unique_ptr<GroupRelay<float>> across_;  ///< as above
  std::size_t step_lanes_ = 1;
  std::optional<SharedTable> shared_;
  std::vector<Slice> slices_;
};

}  // namespace troupe::apps::gpt
