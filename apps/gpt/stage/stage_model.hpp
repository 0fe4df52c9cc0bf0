#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "apps/gpt/layers/rotary.hpp"
#include "apps/gpt/model/context_attention.hpp"
#include "apps/gpt/model/rows.hpp"
#include "apps/gpt/model/share.hpp"
#include "apps/gpt/model/weight_work.hpp"
#include "apps/gpt/stage/cut.hpp"
#include "apps/gpt/stage/part_passes.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"
#include "apps/pipeline/stage_steps.hpp"

namespace troupe::apps::gpt {

/// The passes of one pipeline stage on the host, one microbatch of a chunk per slot. It owns no parameters:
/// passes get pointers in the order of the whole model's table, of which a chunk uses its own. If a group
/// shares the stage, parameters are this rank's parts of them, all members make every call, and for a
/// gradient that is also summed over the group each adds its own part. One thread at a time.
class StageModel {
 public:
  /// Errc::out_of_memory if the activations do not fit in this machine's memory; Errc::unavailable for split
  /// backwards of recomputed activations. The groups match the shape's share and sequences; they must outlive
  /// the model and are not used before the first pass.
  static core::Result<std::unique_ptr<StageModel>> create(const ModelConfig& config, const StageCut& cut,
                                                          const StageShape& shape, StageGroups groups = {});
  /// What create() allocates.
  static std::size_t bytes(const ModelConfig& config, const StageCut& cut, const StageShape& shape);

  StageModel(const StageModel&) = delete;
  StageModel& operator=(const StageModel&) = delete;

  const ParameterTable& table() const { return table_.part(); }
  /// As TrainableStage.
  std::size_t own_rows() const { return own_rows_of(shape_.batch.rows()); }
  std::size_t own_rows_of(std::size_t length) const { return gpt::own_rows(tensor(), length); }

  /// Own rows (N, C): a forward's input, in a slot of inputs, unless the chunk begins the model; its output;
  /// and the gradient, with respect to the output first and after backward to the input.
  std::span<float> input(int slot);
  std::span<float> output(int chunk, int slot);
  std::span<float> gradient(int slot);

  /// `tokens` is read only if the chunk begins the model.
  core::Result<void> forward(int chunk, PassSlots slots, const Pass<float>& pass, TokenSpan tokens);
  /// For a chunk that ends the model, after its forward.
  core::Result<float> loss(int chunk, int slot, const Pass<float>& pass, TokenSpan targets);
  /// For a microbatch that has been through forward, and loss. Tokens and targets as above. If backwards are
  /// split, it adds nothing to gradients; backward_weight() does, and until then the tokens must stay.
  core::Result<void> backward(int chunk, int slot, const Pass<float>& pass, TokenSpan tokens,
                              TokenSpan targets);
  core::Result<void> backward_weight(int slot, const Pass<float>& pass);
  /// For a chunk that ends the model, once backward reports the output layer as ready: the factors of its
  /// gradient, the gradient with respect to this rank's logits (N, V) and all of the normed rows (N, C).
  HeadFactors head_factors(int chunk, int slot);
  /// Where forward sent the rows of a model with experts: for all layers, of which the chunk's are in use.
  std::span<const ExpertRoutes> routes(int chunk, int slot) { return activations(chunk, slot).routes; }

  /// One sequence of 1..T tokens through a chunk, in the first slots.
  core::Result<void> forward_sequence(int chunk, const Pass<float>& pass, TokenSpan tokens);
  /// After that, for a chunk that ends the model: logits (V) of the token that follows this one of the
  /// sequence.
  core::Result<std::span<const float>> logits_of(int chunk, std::size_t token, const Pass<float>& pass);

 private:
  struct Slot {
    std::vector<Activations<float>> chunks;  ///< one of them is in use
    float* gradient = nullptr;               ///< (N, C)
  };

  StageModel(const ModelConfig& config, const StageCut& cut, const StageShape& shape, StageGroups groups,
             std::unique_ptr<float[]> memory);
  PartContext<float> context(int chunk, BatchShape batch) const;
  const TensorParallel<float>* tensor() const { return tensor_ ? &*tensor_ : nullptr; }
  const ContextParallel<float>* across() const { return across_ ? &*across_ : nullptr; }
  Slot& slot(int index) { return slots_[static_cast<std::size_t>(index)]; }
  Activations<float>& activations(int chunk, int index) {
    return slot(index).chunks[static_cast<std::size_t>(chunk)];
  }

  ModelConfig config_;  ///< of the share
  StageCut cut_;
  StageShape shape_;
  SharedTable table_;
  Rotary<float> rotary_;
  std::unique_ptr<float[]> memory_;
  GradientScratch<float> scratch_{};
  std::optional<TensorParallel<float>> tensor_;
  std::optional<ContextParallel<float>> across_;
  std::size_t sequence_ = 0;         ///< tokens in the last forward_sequence()
  std::vector<float> whole_logits_;  ///< (V) of all members
  std::vector<Slot> slots_;
  std::vector<float*> inputs_;           ///< (N, C) each: one per slot, and one more
  std::deque<WeightWork<float>> later_;  ///< per slot, if backwards are split
};

}  // namespace troupe::apps::gpt
