#include "apps/gpt/stage/stage_model.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "apps/gpt/layers/matmul.hpp"
#include "apps/gpt/stage/model.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

// N rows, C width, F feed_forward, V vocabulary, Q the width of queries, K of keys.

using core::Errc;
using core::fail;
using core::Result;

namespace {

/// Elements that a split backward copies in a layer with experts.
std::size_t kept_of_experts(const ExpertConfig& experts, std::size_t rows, std::size_t width) {
  const std::size_t most = experts.most_rows(rows);
  std::size_t elements = rows * experts.count + most * (width + 2 * experts.feed_forward);
  if (experts.ranks == 1) elements += rows * experts.choices * width;  // the gathered tokens
  if (experts.shared_feed_forward > 0) elements += rows * (width + 2 * experts.shared_feed_forward + 1);
  return elements;
}

/// Elements that a split backward of a part copies: gradients, and gathered rows.
std::size_t kept_elements(const ModelConfig& config, std::size_t rows, ModelPart part, bool sequence) {
  const std::size_t C = config.width, F = config.feed_forward;
  const std::size_t Q = config.query_width(), K = config.key_width();
  std::size_t block = Q + 2 * K + C;  // of attention's projections
  block += 2 * C;                     // of the two norms
  if (config.query_key_norm) block += Q + K;
  if (config.query_key_value_bias) block += Q + 2 * K;
  if (config.attention_output_bias) block += C;
  if (sequence) block += 2 * C;  // the norms' gathered outputs
  const std::size_t at_end = sequence ? 2 * C : C;
  const std::size_t ends = (part.has_begin() ? C : 0) + (part.has_end(config) ? at_end : 0);
  const std::size_t mlp = rows * ((config.activation == Activation::swiglu ? 2 : 1) * F + C);
  std::size_t elements = rows * ends;
  for (std::size_t layer = part.first; layer < part.end; ++layer) {
    elements += rows * block;
    elements += config.experts.in_layer(layer) ? kept_of_experts(config.experts, rows, C) : mlp;
  }
  return elements;
}

/// What a layer computes besides the gradient that is wanted.
std::size_t unused_elements(const ModelConfig& config, std::size_t rows) {
  return std::max({2 * config.width, rows * config.width, rows * config.query_width()});
}

struct Places {
  GradientScratch<float> scratch;
  std::optional<TensorParallel<float>> tensor;  // both without their groups
  std::optional<ContextParallel<float>> across;
  struct Slot {
    std::vector<Activations<float>> chunks;
    float* gradient;
    float* kept;
  };
  std::vector<Slot> slots;
  float* unused;
  float* input;          // one more than there are slots
  std::size_t kept = 0;  // elements per slot
  std::size_t elements = 0;
};

/// What layers with experts keep outside of carved memory, and what they share.
void join_experts(Activations<float>& activations, ModelPart part, std::size_t layers,
                  const ExpertScratch<float>& scratch) {
  activations.routes.resize(layers);
  for (std::size_t layer = part.first; layer < part.end; ++layer) {
    auto& experts = activations.blocks[layer - part.first].experts;
    experts.routes = &activations.routes[layer];
    experts.layer = layer;
    experts.gathered = scratch.gathered;
    experts.returned = scratch.rows;
  }
}

/// A slot is as large as the largest chunk. The configuration is that of the share.
Places place(float* base, const ModelConfig& config, const StageCut& cut, const StageShape& shape) {
  const std::size_t N = shape.batch.rows(), C = config.width;
  const auto [members, member, sequence] = shape.share;
  const std::size_t rows = sequence ? most_own_rows(N, members) : N;
  const std::size_t keys = shape.batch.length * shape.context_parallel;
  const ActivationExtents extents{.stream_rows = rows, .keys = keys};
  Carver<float> carver(base);
  Places places{};
  std::size_t largest = 0;
  for (const ModelPart part : cut.parts) {
    Carver<float> plan(nullptr);
    carve_part(plan, config, shape.batch, shape.keep, part, extents);
    largest = std::max(largest, plan.elements());
    if (shape.is_split) places.kept = std::max(places.kept, kept_elements(config, N, part, sequence));
  }
  places.scratch = carve_gradients(carver, config, shape.batch, extents);
  if (members > 1) {
    places.tensor = carve_tensor(carver, members, sequence, N, config);
    // Unused between passes, and within a pass used as in a whole model.
    places.tensor->partial = places.scratch.normed;
  }
  if (shape.context_parallel > 1) places.across = carve_context(carver, shape.batch.batch, keys, config);
  places.input = shape.slots.input > shape.slots.activations ? carver.take(rows, C) : nullptr;
  places.unused = shape.is_split ? carver.take(unused_elements(config, N)) : nullptr;
  for (int index = 0; index < shape.slots.activations; ++index) {
    Places::Slot slot{};
    float* memory = carver.take(largest);
    for (const ModelPart part : cut.parts) {
      Carver<float> own(memory);
      slot.chunks.push_back(carve_part(own, config, shape.batch, shape.keep, part, extents));
    }
    slot.gradient = carver.take(rows, C);
    slot.kept = carver.take(places.kept);
    places.slots.push_back(std::move(slot));
  }
  places.elements = carver.elements();
  return places;
}

}  // namespace

std::size_t StageModel::bytes(const ModelConfig& config, const StageCut& cut, const StageShape& shape) {
  return place(nullptr, config_of_share(config, shape.share.size), cut, shape).elements * sizeof(float);
}

Result<std::unique_ptr<StageModel>> StageModel::create(const ModelConfig& config, const StageCut& cut,
                                                       const StageShape& shape, StageGroups groups) {
  CHECK((shape.share.size > 1) == (groups.layers != nullptr), "members of a group have a share");
  CHECK((shape.context_parallel > 1) == (groups.sequences != nullptr), "members of a group share sequences");
  TRY(validate(config));
  TRY(check_shape(config, shape.batch));
  TRY(check_keep(config, shape.keep));
  TRY(check_split(shape.is_split, shape.keep));
  const std::size_t wanted = bytes(config, cut, shape), machine_bytes = physical_memory_bytes();
  std::unique_ptr<float[]> memory;
  if (wanted <= machine_bytes) memory.reset(new (std::nothrow) float[wanted / sizeof(float)]());
  if (!memory) {
    return fail(Errc::out_of_memory,
                "the activations of {} microbatches of {} sequences of {} tokens need {} MiB in stage {}, "
                "this machine has {} MiB; use a smaller microbatch, a shorter context, --recompute, another "
                "schedule or a smaller model",
                shape.slots.activations, shape.batch.batch, shape.batch.length, wanted >> 20, cut.stage,
                machine_bytes >> 20);
  }
  TRY(prepare_blas());
  return std::unique_ptr<StageModel>(new StageModel(config, cut, shape, groups, std::move(memory)));
}

StageModel::StageModel(const ModelConfig& config, const StageCut& cut, const StageShape& shape,
                       StageGroups groups, std::unique_ptr<float[]> memory)
    : config_(config_of_share(config, shape.share.size)),
      cut_(cut),
      shape_(shape),
      table_(config, shape.share),
      rotary_(rotary_of<float>(config, shape.batch.length, member_of(groups.sequences))),
      memory_(std::move(memory)) {
  auto places = place(memory_.get(), config_, cut_, shape_);
  scratch_ = places.scratch;
  tensor_ = places.tensor;
  across_ = places.across;
  if (tensor_) tensor_->group = groups.layers;
  if (across_) across_->group = groups.sequences;
  const std::span unused(places.unused, shape_.is_split ? unused_elements(config_, shape_.batch.rows()) : 0);
  for (auto& slot : places.slots) {
    later_.emplace_back(std::span(slot.kept, places.kept), unused);
    slots_.push_back({std::move(slot.chunks), slot.gradient});
    for (std::size_t chunk = 0; chunk < cut_.parts.size(); ++chunk)
      join_experts(slots_.back().chunks[chunk], cut_.parts[chunk], config_.layers, scratch_.experts);
    // The first piece of a slot, whichever chunk uses it.
    inputs_.push_back(slots_.back().chunks.front().blocks.front().input);
  }
  inputs_.push_back(places.input);
}

PartContext<float> StageModel::context(int chunk, BatchShape batch) const {
  return {{config_, batch, rotary_, tensor(), across()},
          table(),
          cut_.parts[static_cast<std::size_t>(chunk)],
          shape_.keep};
}

std::span<float> StageModel::input(int slot) {
  return {inputs_[static_cast<std::size_t>(slot)], own_rows() * config_.width};
}

std::span<float> StageModel::output(int chunk, int slot) {
  return {activations(chunk, slot).output, own_rows() * config_.width};
}

std::span<float> StageModel::gradient(int index) {
  return {slot(index).gradient, own_rows() * config_.width};
}

Result<void> StageModel::forward(int chunk, PassSlots slots, const Pass<float>& pass, TokenSpan tokens) {
  auto& a = activations(chunk, slots.activations);
  a.blocks.front().input = inputs_[static_cast<std::size_t>(slots.input)];
  return part_forward(context(chunk, shape_.batch), a, pass, tokens);
}

Result<float> StageModel::loss(int chunk, int slot, const Pass<float>& pass, TokenSpan targets) {
  TRY(check_targets(targets, config_.vocabulary * shape_.share.size));
  return part_loss(context(chunk, shape_.batch), activations(chunk, slot), pass, targets);
}

Result<void> StageModel::backward(int chunk, int index, const Pass<float>& pass, TokenSpan tokens,
                                  TokenSpan targets) {
  auto scratch = scratch_;
  scratch.residual = slot(index).gradient;
  auto own = pass;
  if (shape_.is_split) {
    own.later = &later_[static_cast<std::size_t>(index)];
    own.later->begin();
  }
  return part_backward(context(chunk, shape_.batch), activations(chunk, index), scratch, own, tokens,
                       targets);
}

Result<void> StageModel::backward_weight(int slot, const Pass<float>& pass) {
  return later_[static_cast<std::size_t>(slot)].run(pass);
}

HeadFactors StageModel::head_factors(int chunk, int slot) {
  const auto& a = activations(chunk, slot);
  const std::size_t N = shape_.batch.rows();
  const bool is_gathered = tensor_ && tensor_->sequence;
  const float* normed = is_gathered ? tensor_->gathered : a.final_norm.output;
  return {gpu::view_of(std::span<const float>(a.logits, N * config_.vocabulary)),
          gpu::view_of(std::span(normed, N * config_.width))};
}

Result<void> StageModel::forward_sequence(int chunk, const Pass<float>& pass, TokenSpan tokens) {
  sequence_ = tokens.size();
  CHECK(sequence_ >= 1 && sequence_ <= shape_.batch.length, "one sequence of 1..T tokens");
  auto& a = activations(chunk, 0);
  a.blocks.front().input = inputs_.front();
  return part_forward(context(chunk, {1, sequence_}), a, pass, tokens);
}

Result<std::span<const float>> StageModel::logits_of(int chunk, std::size_t token, const Pass<float>& pass) {
  CHECK(token < sequence_, "a token of the sequence");
  const std::size_t C = config_.width, V = config_.vocabulary;
  const auto& a = activations(chunk, 0);
  const float* last = TRY(all_rows<float>(tensor(), sequence_, C, a.final_norm.output)) + token * C;
  const std::span<float> own(a.logits, V);
  linear_forward({1, C, V}, last, TRY(pass.use(table().head)), own.data());
  if (!tensor_) return std::span<const float>(own);
  const std::size_t members = tensor_->group->size();
  whole_logits_.resize(members * V);
  TRY(tensor_->group->gather(own, whole_logits_, TensorGroup<float>::Counts(members, V)));
  return std::span<const float>(whole_logits_);
}

}  // namespace troupe::apps::gpt
