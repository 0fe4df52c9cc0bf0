#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "apps/gpt/model/rows.hpp"
#include "apps/gpt/model/sequences.hpp"
#include "apps/gpt/model/weight_work.hpp"
#include "apps/gpt/stage/cut.hpp"
#include "apps/gpt/stage/part_passes.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"
#include "core/errors.hpp"
#include "gpu/buffer.hpp"
#include "gpu/stream.hpp"

namespace troupe::apps::gpt {

// N rows, C width, V vocabulary. X is the engine that computes, E its elements.

/// Where everything of a stage is in its memory.
template <class X>
struct StagePlaces {
  using E = typename X::Element;
  /// What a microbatch keeps; as large as the largest chunk needs.
  struct Slot {
    std::vector<Activations<E>> chunks;  ///< one of them is in use
    E* gradient = nullptr;               ///< (N, C)
    gpu::BufferView kept{};              ///< for the weights' half of backward, if it is split
  };

  GradientScratch<E> scratch{};
  std::optional<TensorParallel<X>> tensor;  ///< both without their groups
  std::optional<ContextParallel<X>> sequences;
  std::vector<Slot> slots;
  std::vector<E*> inputs;  ///< (N, C) each: one per slot, and one more
};

/// What layers with experts keep outside of carved memory, and what they share.
template <class E>
void join_experts(Activations<E>& activations, std::size_t layers, const ExpertScratch<E>& scratch) {
  activations.routes.resize(layers);
  for (auto& block : activations.blocks) {
    auto& experts = block.experts;
    experts.routes = &activations.routes[experts.layer];
    experts.gathered = scratch.gathered;
    experts.returned = scratch.rows;
    experts.moved = scratch.moved;
  }
}

/// The configuration is that of the share.
template <class X>
StagePlaces<X> place_stage(Carver& carver, const ModelConfig& config, const StageCut& cut,
                           const StageShape& shape) {
  using E = typename X::Element;
  const std::size_t N = shape.batch.rows(), C = config.width;
  const auto [members, member, sequence, slices] = shape.share;
  const std::size_t rows = sequence ? most_own_rows(N, members) : N;
  const ActivationExtents extents{
      .stream_rows = rows, .keys = shape.batch.length * shape.context_parallel, .slices = slices};
  StagePlaces<X> places;
  places.scratch = carve_gradients<X>(carver, config, shape.batch, extents);
  if (shape.share.is_sliced()) {
    places.tensor = carve_tensor<X>(carver, shape.share, N, config);
    // Forward does not use it, and backward is done with it when a block recomputes forward.
    places.tensor->partial = places.scratch.normed;
  }
  if (shape.context_parallel > 1)
    places.sequences = carve_sequences<X>(carver, shape.context_parallel, N, config);
  std::size_t largest = 0, kept = 0;
  for (const ModelPart part : cut.parts) {
    Carver plan(nullptr, X::kAlign);
    carve_part<X>(plan, config, shape.batch, shape.keep, part, extents);
    largest = std::max(largest, plan.bytes());
    if (shape.is_split) kept = std::max(kept, kept_bytes<E>(config, N, rows, part, sequence, X::kAlign));
  }
  for (int index = 0; index < shape.slots.activations; ++index) {
    typename StagePlaces<X>::Slot slot;
    auto* memory = carver.take<std::byte>(largest);
    for (const ModelPart part : cut.parts) {
      Carver own(memory, X::kAlign);
      slot.chunks.push_back(carve_part<X>(own, config, shape.batch, shape.keep, part, extents));
    }
    slot.gradient = carver.take<E>(rows, C);
    slot.kept = {carver.take<std::byte>(kept), kept};
    // The first piece of a slot, whichever chunk uses it.
    places.inputs.push_back(slot.chunks.front().blocks.front().input);
    places.slots.push_back(std::move(slot));
  }
  const bool has_more = shape.slots.input > shape.slots.activations;
  places.inputs.push_back(has_more ? carver.take<E>(X::stream_elements(config, rows)) : nullptr);
  return places;
}

/// The passes of one pipeline stage, one microbatch of a chunk per slot. It owns no parameters: passes get
/// pointers in the order of the whole model's table, of which a chunk uses its own. If a group shares the
/// stage, parameters are this rank's parts of them, all members make every call, and for a gradient that is
/// also summed over the group each adds its own part. One thread at a time.
template <class X>
class StageCore {
 public:
  using E = typename X::Element;
  using Group = typename X::Group;
  using Desk = typename X::Desk;
  using Text = typename X::Text;

  /// `config` is that of the share. The groups match the shape's share and sequences; they must outlive the
  /// stage and are not used before the first pass. `stream` is the engine's; null: it has none.
  StageCore(const ModelConfig& config, const StageCut& cut, const StageShape& shape, StagePlaces<X> places,
            X engine, std::pair<Group*, Group*> groups, gpu::StreamView stream = nullptr)
      : config_(config),
        cut_(cut),
        shape_(shape),
        table_(parameter_table(config)),
        places_(std::move(places)),
        engine_(std::move(engine)) {
    if (places_.tensor) places_.tensor->group = groups.first;
    if (places_.sequences) places_.sequences->group = groups.second;
    for (auto& slot : places_.slots) {
      later_.emplace_back(slot.kept, X::kAlign, stream);
      for (auto& chunk : slot.chunks) join_experts(chunk, config_.layers, places_.scratch.experts);
    }
  }
  StageCore(const StageCore&) = delete;
  StageCore& operator=(const StageCore&) = delete;

  const ModelConfig& config() const { return config_; }
  const StageShape& shape() const { return shape_; }
  const ParameterTable& table() const { return table_; }
  const X& engine() const { return engine_; }
  ModelPart part(int chunk) const { return cut_.parts[static_cast<std::size_t>(chunk)]; }
  /// The whole model's; the configuration has this rank's share.
  std::size_t vocabulary() const { return config_.vocabulary * shape_.share.size; }
  /// Like TrainableStage.
  std::size_t own_rows() const { return own_rows_of(shape_.batch.rows()); }
  std::size_t own_rows_of(std::size_t length) const {
    const auto& share = shape_.share;
    return share.sequence ? even_counts(share.size, length)[share.index] : length;
  }

  Activations<E>& activations(int chunk, int index) {
    return slot(index).chunks[static_cast<std::size_t>(chunk)];
  }
  E* input(int slot) { return places_.inputs[static_cast<std::size_t>(slot)]; }
  E* gradient(int index) { return slot(index).gradient; }
  /// Own rows, and what follows them between stages.
  gpu::BufferView stream_at(E* rows) const { return view(rows, X::stream_elements(config_, own_rows())); }
  gpu::BufferView rows_at(E* rows) const { return view(rows, own_rows() * config_.width); }

  PartContext<X> context(int chunk, BatchShape batch, Desk* desk = nullptr) const {
    return {{config_, batch, engine_, shape_.share.slices, places_.tensor ? &*places_.tensor : nullptr,
             places_.sequences ? &*places_.sequences : nullptr, desk},
            table_,
            part(chunk),
            shape_.keep};
  }

  core::Result<void> forward(int chunk, PassSlots slots, const Pass<E>& pass, Text text,
                             Desk* desk = nullptr) {
    return forward(context(chunk, shape_.batch, desk), chunk, slots, pass, text);
  }
  /// For a chunk that ends the model, after its forward. `loss` is as part_loss() takes it.
  core::Result<void> loss(int chunk, int slot, const Pass<E>& pass, Text text, double* loss) {
    return part_loss(context(chunk, shape_.batch), activations(chunk, slot), pass, text, loss);
  }
  /// For a microbatch that has been through forward, and loss. If backwards are split, it adds nothing to
  /// gradients; backward_weight() does.
  core::Result<void> backward(int chunk, int index, const Pass<E>& pass, Text text, Desk* desk = nullptr) {
    CHECK(pass.gradients.size() == table_.specs.size(), "one gradient pointer per parameter of the table");
    auto scratch = places_.scratch;
    scratch.residual = slot(index).gradient;
    Pass<E> own = pass;
    if (shape_.is_split) {
      own.later = &later_[static_cast<std::size_t>(index)];
      own.later->begin();
    }
    return part_backward(context(chunk, shape_.batch, desk), activations(chunk, index), scratch, own, text);
  }
  core::Result<void> backward_weight(int slot, const Pass<E>& pass) {
    return later_[static_cast<std::size_t>(slot)].run(pass);
  }

  /// Like TrainableStage. The normed rows were gathered by backward.
  HeadFactors head_factors(int chunk, int slot) {
    const auto& a = activations(chunk, slot);
    const std::size_t N = shape_.batch.rows();
    E* normed = shape_.share.sequence ? places_.tensor->gathered : a.final_norm.output;
    return {view(a.logits, N * config_.vocabulary), view(normed, N * config_.width)};
  }
  void add_head_gradient(const HeadFactors& factors, SumOf<E>* gradient) const {
    multiply_backward_weight(context(0, shape_.batch).block, Sliced::outputs,
                             {shape_.batch.rows(), config_.width, config_.vocabulary},
                             reinterpret_cast<const E*>(factors.logits.data),
                             reinterpret_cast<const E*>(factors.normed.data), gradient);
  }

  /// One sequence of 1..T tokens through a chunk, in the first slots.
  core::Result<void> forward_sequence(int chunk, const Pass<E>& pass, Text text, std::size_t length,
                                      Desk* desk = nullptr) {
    CHECK(length >= 1 && length <= shape_.batch.length, "one sequence of 1..T tokens");
    sequence_ = length;
    return forward(context(chunk, {1, length}, desk), chunk, {}, pass, text);
  }
  /// After that, for a chunk that ends the model: this rank's logits (V) of the token that follows this one.
  core::Result<E*> own_logits_of(int chunk, std::size_t token, const Pass<E>& pass) {
    CHECK(token < sequence_, "a token of the sequence");
    const auto& a = activations(chunk, 0);
    const auto with = context(chunk, {1, sequence_});
    const E* last = TRY(all_rows<X>(with.block, a.final_norm.output)) + token * config_.width;
    const E* head = TRY(pass.use(table_.head));
    multiply_forward(with.block, Sliced::outputs, {1, config_.width, config_.vocabulary}, last, head,
                     a.logits);
    return a.logits;
  }

 private:
  typename StagePlaces<X>::Slot& slot(int index) { return places_.slots[static_cast<std::size_t>(index)]; }
  static gpu::BufferView view(E* first, std::size_t count) {
    return {reinterpret_cast<std::byte*>(first), count * sizeof(E)};
  }
  core::Result<void> forward(const PartContext<X>& with, int chunk, PassSlots slots, const Pass<E>& pass,
                             Text text) {
    CHECK(pass.parameters.size() == table_.specs.size(), "one pointer per parameter of the table");
    auto& a = activations(chunk, slots.activations);
    a.blocks.front().input = input(slots.input);
    return part_forward(with, a, pass, text);
  }

  ModelConfig config_;
  StageCut cut_;
  StageShape shape_;
  ParameterTable table_;
  StagePlaces<X> places_;
  X engine_;
  std::deque<WeightWork<E>> later_;  ///< per slot, used if backwards are split
  std::size_t sequence_ = 0;         ///< tokens in the last forward_sequence()
};

}  // namespace troupe::apps::gpt
