#include "apps/gpt/cuda/cuda_stage.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "apps/gpt/cuda/cuda_attention.hpp"
#include "apps/gpt/cuda/cuda_block.hpp"
#include "apps/gpt/cuda/cuda_places.hpp"
#include "apps/gpt/cuda/cuda_projection.hpp"
#include "apps/gpt/cuda/cuda_tensor.hpp"
#include "apps/gpt/cuda/cuda_weight_work.hpp"
#include "apps/gpt/cuda/expert_desk.hpp"
#include "apps/gpt/cuda/loss_queue.hpp"
#include "apps/gpt/cuda/token_upload.hpp"
#include "apps/gpt/kernels/kernels.hpp"
#include "apps/gpt/layers/cross_entropy.hpp"
#include "apps/gpt/layers/rotary.hpp"
#include "apps/gpt/model/context_attention.hpp"
#include "apps/gpt/model/rows.hpp"
#include "core/disregard.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps::gpt {

// B batch, T length, N = B*T rows, C width, V vocabulary.

using core::Result;

namespace {

constexpr auto kDeadline = std::chrono::minutes(10);

template <class E>
class CudaStage final : public TrainableStage {
 public:
  CudaStage(const ModelConfig& config, StageCut cut, const StageShape& shape, CudaModelOptions options,
            gpu::StreamView stream, DeviceGroups groups)
      : config_(config_of_share(config, shape.share.size)),
        cut_(std::move(cut)),
        shape_(shape),
        options_(options),
        table_(parameter_table(config_)),
        stream_(stream),
        groups_(groups) {}
  ~CudaStage() override {
    core::disregard(stream_->synchronize(kDeadline), "passes that fail now are missed by nobody");
  }

  Result<void> open(gpu::Device& device);

  const ParameterTable& table() const override { return table_; }
  core::DType dtype() const override { return options_.dtype; }
  std::size_t own_rows() const override { return own_rows_of(shape_.batch.rows()); }
  std::size_t own_rows_of(std::size_t length) const override {
    const auto& share = shape_.share;
    return share.sequence ? even_counts(share.size, length)[share.index] : length;
  }

  gpu::BufferView input(int slot) override { return stream_at(inputs_[static_cast<std::size_t>(slot)]); }
  gpu::BufferView output(int chunk, int slot) override { return stream_at(activations(chunk, slot).output); }
  gpu::BufferView gradient(int index) override { return rows_at(slot(index).gradient); }

  Result<void> forward(int chunk, PassSlots slots, const StagePass& pass, StageText text) override;
  Result<void> loss(int chunk, int slot, const StagePass& pass, StageText text) override;
  Result<std::vector<StageLoss>> take_losses(std::size_t count) override { return losses_->take(count); }
  Result<void> backward(int chunk, int slot, const StagePass& pass, StageText text) override;
  Result<void> backward_weight(int slot, const StagePass& pass) override;

  HeadFactors head_factors(int chunk, int slot) override;
  void add_head_gradient(const HeadFactors& factors, float* gradient) override;
  std::span<const ExpertRoutes> routes(int chunk, int slot) override {
    if (desks_.empty()) return {};
    return desk(chunk, slot).routes();
  }

  Result<void> forward_sequence(int chunk, const StagePass& pass,
                                std::span<const std::int32_t> tokens) override;
  Result<std::span<const float>> logits_of(int chunk, std::size_t token, const StagePass& pass) override;

 private:
  CudaSlot<E>& slot(int index) { return places_.slots[static_cast<std::size_t>(index)]; }
  CudaActivations<E>& activations(int chunk, int index) {
    return slot(index).chunks[static_cast<std::size_t>(chunk)];
  }
  ModelPart part(int chunk) const { return cut_.parts[static_cast<std::size_t>(chunk)]; }
  TokenUpload& upload(int slot) { return uploads_[static_cast<std::size_t>(slot)]; }
  ExpertDesk& desk(int chunk, int slot) {
    return desks_[static_cast<std::size_t>(slot) * cut_.parts.size() + static_cast<std::size_t>(chunk)];
  }
  gpu::BufferView stream_at(E* rows) const {
    return {reinterpret_cast<std::byte*>(rows), stream_elements<E>(config_, own_rows()) * sizeof(E)};
  }
  /// The balance losses of the part's layers, behind the rows of a microbatch.
  gpu::BufferView routes_at(E* rows, ModelPart part) const {
    return stream_at(rows).subview(rows_at(rows).bytes + part.first * sizeof(double),
                                   (part.end - part.first) * sizeof(double));
  }
  gpu::BufferView rows_at(E* rows) const {
    return {reinterpret_cast<std::byte*>(rows), own_rows() * config_.width * sizeof(E)};
  }
  /// The whole model's; the configuration has this rank's share.
  std::size_t vocabulary() const { return config_.vocabulary * shape_.share.size; }
  CudaContext context(BatchShape batch, int chunk, int slot) {
    return {config_,
            batch,
            places_.shared.cosine,
            places_.shared.sine,
            *blas_,
            stream_,
            desks_.empty() ? nullptr : &desk(chunk, slot),
            places_.tensor ? &*places_.tensor : nullptr,
            places_.sequences ? &*places_.sequences : nullptr};
  }
  cuda::CrossEntropy<E> entropy(const CudaActivations<E>& a, int slot, const StepHooks& hooks) {
    const TokenUpload& text = upload(slot);
    return {shape_.batch.rows(),
            config_.vocabulary,
            text.place().targets,
            a.logits,
            a.log_sum,
            a.row_losses,
            hooks.loss_rows.value_or(text.learned())};
  }
  CudaPass<E> own(const StagePass& pass) const {
    CHECK(pass.parameters.size() == table_.specs.size(), "one pointer per parameter of the table");
    return {pass.parameters, pass.gradients, pass.hooks};
  }
  Result<void> send_angles(gpu::Device& device);
  Result<void> part_forward(int chunk, PassSlots slots, BatchShape batch, const CudaPass<E>& pass);
  void hand_on_routes(int chunk, PassSlots slots);
  Result<void> head_backward(const CudaActivations<E>& a, int chunk, int slot,
                             const CudaGradientScratch<E>& d, const CudaPass<E>& pass);

  ModelConfig config_;
  StageCut cut_;
  StageShape shape_;
  CudaModelOptions options_;
  ParameterTable table_;
  gpu::StreamView stream_;
  DeviceGroups groups_;
  gpu::Buffer memory_;
  CudaPlaces<E> places_;
  std::vector<E*> inputs_;  ///< (N, C) each: one per slot, and one more
  std::unique_ptr<Blas> blas_;
  std::vector<TokenUpload> uploads_;      ///< per slot, if a chunk reads text
  std::vector<ExpertDesk> desks_;         ///< per slot and chunk, for a model with experts
  std::vector<CudaWeightWork<E>> later_;  ///< per slot, if backwards are split
  std::optional<LossQueue> losses_;       ///< for a stage that ends the model
  gpu::Buffer read_logits_;               ///< pinned
  gpu::Event copied_;                     ///< when logits have reached the host
  std::size_t sequence_ = 0;              ///< tokens in the last forward_sequence()
};

template <class E>
Result<void> CudaStage<E>::open(gpu::Device& device) {
  ByteCarver plan(nullptr);
  place_stage<E>(plan, config_, cut_, shape_);
  memory_ = TRY(device.allocate(plan.bytes()));
  ByteCarver place(memory_.view().data);
  places_ = place_stage<E>(place, config_, cut_, shape_);
  if (places_.tensor) places_.tensor->group = groups_.layers;
  if (places_.sequences) places_.sequences->group = groups_.sequences;
  blas_ = TRY(Blas::create(device, stream_, options_.tf32));
  for (const CudaSlot<E>& slot : places_.slots) {
    // The first piece of a slot, whichever chunk uses it.
    inputs_.push_back(slot.chunks.front().blocks.front().input);
    if (slot.words != nullptr)
      uploads_.push_back(TRY(TokenUpload::create(device, config_, shape_.batch, slot.words,
                                                 shape_.share.index * config_.vocabulary)));
    if (shape_.is_split) later_.emplace_back(slot.kept, stream_);
    for (std::size_t chunk = 0; config_.experts.count > 0 && chunk < cut_.parts.size(); ++chunk)
      desks_.push_back(TRY(ExpertDesk::create(device, config_.experts, config_.layers, shape_.batch.rows(),
                                              shape_.context_parallel)));
  }
  inputs_.push_back(places_.input);
  copied_ = TRY(device.create_event());
  if (cut_.parts.back().has_end(config_)) {
    losses_ = TRY(LossQueue::create(device, config_.layers));
    read_logits_ = TRY(device.allocate_staging(vocabulary() * sizeof(float)));
  }
  return send_angles(device);
}

template <class E>
Result<void> CudaStage<E>::send_angles(gpu::Device& device) {
  const auto rotary = rotary_of<float>(config_, shape_.batch.length, member_of(groups_.sequences));
  const std::size_t bytes = rotary.cosine().size_bytes();
  const auto staging = TRY(device.allocate_staging(bytes));
  for (auto [from, to] :
       {std::pair(rotary.cosine(), places_.shared.cosine), std::pair(rotary.sine(), places_.shared.sine)}) {
    gpu::copy(gpu::view_of(from), staging.view());
    gpu::copy(staging.view(), {reinterpret_cast<std::byte*>(to), bytes}, stream_);
    TRY(stream_->synchronize(kDeadline));
  }
  return {};
}

template <class E>
Result<void> CudaStage<E>::forward(int chunk, PassSlots slots, const StagePass& pass, StageText text) {
  if (reads_text(config_, part(chunk))) {
    const std::size_t N = shape_.batch.rows();
    CHECK(text.tokens.size() == N && text.targets.size() == N,
          "tokens and targets have the shape given to create()");
    TRY(check_targets(text.targets, vocabulary()));
    TRY(check_tokens(text.tokens, vocabulary()));
    TRY(upload(slots.activations).send(text.tokens, text.targets, stream_));
  }
  TRY(part_forward(chunk, slots, shape_.batch, own(pass)));
  hand_on_routes(chunk, slots);
  return {};
}

/// Appends the balance losses of the layers so far to the output's rows: earlier stages have sent theirs with
/// the input. The device no longer reads what is pinned for earlier passes of the slot: the desk has waited
/// for them.
template <class E>
void CudaStage<E>::hand_on_routes(int chunk, PassSlots slots) {
  const ModelPart part = this->part(chunk);
  if (config_.experts.count == 0 || part.has_end(config_)) return;
  E* const output = activations(chunk, slots.activations).output;
  if (part.first > 0) {
    gpu::copy(routes_at(inputs_[static_cast<std::size_t>(slots.input)], {0, part.first}),
              routes_at(output, {0, part.first}), stream_);
  }
  desk(chunk, slots.activations).send_losses(part.first, routes_at(output, part), stream_);
}

template <class E>
Result<void> CudaStage<E>::part_forward(int chunk, PassSlots slots, BatchShape batch,
                                        const CudaPass<E>& pass) {
  auto& a = activations(chunk, slots.activations);
  a.blocks.front().input = inputs_[static_cast<std::size_t>(slots.input)];
  const ModelPart part = this->part(chunk);
  const CudaContext with = context(batch, chunk, slots.activations);
  if (part.has_begin()) {
    const E* embedding = TRY(pass.use(table_.embedding));
    const auto* tokens = upload(slots.activations).place().tokens;
    E* x = a.blocks.front().input;
    if (with.tensor != nullptr) {
      TRY(vocabulary_embedding_forward<E>(with, tokens, embedding, x));
    } else {
      with.run("embedding", [&](cudaStream_t stream) {
        return cuda::embedding_forward(tokens, batch.rows(), config_.width, embedding, x, stream);
      });
    }
  }
  for (std::size_t i = 0; i < a.blocks.size(); ++i) {
    E* output = i + 1 < a.blocks.size() ? a.blocks[i + 1].input : a.output;
    TRY(block_forward(with, table_.blocks[part.first + i], a.blocks[i], pass, output));
  }
  if (!part.has_end(config_)) return {};
  return norm_forward(with, table_.final_norm, a.output, a.final_norm, pass);
}

template <class E>
Result<void> CudaStage<E>::loss(int chunk, int slot, const StagePass& pass, StageText /*text*/) {
  const std::size_t N = shape_.batch.rows(), C = config_.width, V = config_.vocabulary;
  const auto& a = activations(chunk, slot);
  const CudaContext with = context(shape_.batch, chunk, slot);
  const E* x = TRY(all_rows<E>(with, a.final_norm.output));
  blas_->linear_forward({N, C, V}, x, TRY(own(pass).use(table_.head)), a.logits);
  double* loss = places_.shared.losses + TRY(losses_->next_place());
  if (with.tensor != nullptr) {
    TRY(vocabulary_cross_entropy_forward(with, entropy(a, slot, pass.hooks), loss));
  } else {
    with.run("cross entropy", [&](cudaStream_t stream) {
      return cuda::cross_entropy_forward(entropy(a, slot, pass.hooks), loss, stream);
    });
  }
  std::vector<double> routes;
  gpu::BufferView earlier{};
  if (config_.experts.count > 0) {
    for (const ExpertRoutes& layer : desk(chunk, slot).routes()) routes.push_back(layer.loss);
    earlier = routes_at(a.blocks.front().input, {0, part(chunk).first});
  }
  losses_->push({reinterpret_cast<const std::byte*>(loss), sizeof(double)}, std::move(routes), earlier,
                stream_);
  return {};
}

template <class E>
Result<void> CudaStage<E>::backward(int chunk, int index, const StagePass& stage_pass, StageText /*text*/) {
  CudaPass<E> pass = own(stage_pass);
  CHECK(pass.gradients.size() == table_.specs.size(), "one gradient pointer per parameter of the table");
  if (shape_.is_split) {
    pass.later = &later_[static_cast<std::size_t>(index)];
    pass.later->begin();
  }
  const auto& a = activations(chunk, index);
  const ModelPart part = this->part(chunk);
  auto d = places_.shared.gradients;
  d.residual = slot(index).gradient;
  const CudaContext with = context(shape_.batch, chunk, index);
  if (part.has_end(config_)) TRY(head_backward(a, chunk, index, d, pass));
  for (std::size_t i = a.blocks.size(); i-- > 0;) {
    const BlockParameters& parameters = table_.blocks[part.first + i];
    // The last block's are still there.
    if (shape_.keep == Keep::inputs && i + 1 < a.blocks.size())
      TRY(block_activations(with, parameters, a.blocks[i], pass));
    TRY(block_backward(with, parameters, a.blocks[i], d, pass));
  }
  if (!part.has_begin()) return {};
  const E* d_rows = TRY(all_rows<E>(with, d.residual));
  const E* kept = kept_for_weights(pass, d_rows, shape_.batch.rows() * config_.width);
  return use_and_add_to_gradient(
      pass, table_.embedding, [=, this, partials = d.partials](const CudaPass<E>& at) {
        with.run("embedding backward", [&](cudaStream_t stream) {
          return cuda::embedding_backward(upload(index).order(), config_.width, kept, partials,
                                          at.gradient(table_.embedding), stream);
        });
      });
}

template <class E>
Result<void> CudaStage<E>::head_backward(const CudaActivations<E>& a, int chunk, int slot,
                                         const CudaGradientScratch<E>& d, const CudaPass<E>& pass) {
  const LinearShape shape{shape_.batch.rows(), config_.width, config_.vocabulary};
  const CudaContext with = context(shape_.batch, chunk, slot);
  auto gradient = entropy(a, slot, pass.hooks);
  gradient.scale = static_cast<float>(pass.hooks.loss_scale);
  with.run("cross entropy backward",
           [&](cudaStream_t stream) { return cuda::cross_entropy_backward(gradient, stream); });
  const E* x = TRY(all_rows<E>(with, a.final_norm.output));
  const E* head = TRY(pass.use(table_.head));
  if (!config_.tied_embeddings) {
    x = kept_for_weights(pass, x, shape.rows * shape.in, a.final_norm.output);
    add_weight_gradient(with, pass, shape, table_.head, x, static_cast<const E*>(a.logits));
  } else {
    // Without a place for the gradient, another stage multiplies and waits for this, so it is not deferred. A
    // tied embedding is ready once its rows are added too.
    if (pass.gradient(table_.head) != nullptr)
      blas_->linear_backward_weight(shape, a.logits, x, pass.gradient(table_.head));
    if (!part(chunk).has_begin()) pass.ready(table_.head);
  }
  blas_->linear_backward_input(shape, a.logits, head, d.normed);
  const E* d_normed = TRY(summed_rows(with, d.normed));
  gpu::zero(rows_at(d.residual), stream_);
  return norm_backward<E>(with, table_.final_norm, a.output, a.final_norm, d_normed, d, pass);
}

template <class E>
Result<void> CudaStage<E>::backward_weight(int slot, const StagePass& pass) {
  return later_[static_cast<std::size_t>(slot)].run(own(pass));
}

template <class E>
HeadFactors CudaStage<E>::head_factors(int chunk, int slot) {
  const auto& a = activations(chunk, slot);
  const std::size_t N = shape_.batch.rows();
  const auto* normed = reinterpret_cast<const std::byte*>(a.final_norm.output);
  if (shape_.share.sequence) normed = places_.tensor->gathered;  // gathered by backward
  return {{reinterpret_cast<const std::byte*>(a.logits), N * config_.vocabulary * sizeof(E)},
          {normed, N * config_.width * sizeof(E)}};
}

template <class E>
void CudaStage<E>::add_head_gradient(const HeadFactors& factors, float* gradient) {
  blas_->linear_backward_weight({shape_.batch.rows(), config_.width, config_.vocabulary},
                                reinterpret_cast<const E*>(factors.logits.data),
                                reinterpret_cast<const E*>(factors.normed.data), gradient);
}

template <class E>
Result<void> CudaStage<E>::forward_sequence(int chunk, const StagePass& pass,
                                            std::span<const std::int32_t> tokens) {
  sequence_ = tokens.size();
  CHECK(sequence_ >= 1 && sequence_ <= shape_.batch.length, "one sequence of 1..T tokens");
  TRY(check_tokens(tokens, vocabulary()));
  if (part(chunk).has_begin()) TRY(upload(0).send(tokens, {}, stream_));
  return part_forward(chunk, {}, {1, sequence_}, own(pass));
}

template <class E>
Result<std::span<const float>> CudaStage<E>::logits_of(int chunk, std::size_t token, const StagePass& pass) {
  const std::size_t C = config_.width, V = config_.vocabulary;
  const auto& a = activations(chunk, 0);
  const CudaContext with = context({1, sequence_}, chunk, 0);
  const E* last = TRY(all_rows<E>(with, a.final_norm.output)) + token * C;
  blas_->linear_forward({1, C, V}, last, TRY(own(pass).use(table_.head)), a.logits);
  float* wide = places_.shared.next_logits;
  with.run("widen logits", [&](cudaStream_t stream) { return cuda::widen(V, a.logits, wide, stream); });
  if (with.tensor != nullptr) wide = TRY(all_next_logits(with, wide, places_.all_logits));
  const auto logits = read_logits_.view();
  gpu::copy({reinterpret_cast<const std::byte*>(wide), logits.bytes}, logits, stream_);
  stream_->record(copied_.get());
  TRY(copied_->wait(kDeadline));
  return std::span<const float>(logits.as<float>());
}

template <class E>
Result<std::unique_ptr<TrainableStage>> create(const ModelConfig& config, const StageCut& cut,
                                               const StageShape& shape, CudaModelOptions options,
                                               gpu::Device& device, gpu::StreamView compute,
                                               DeviceGroups groups) {
  auto stage = std::make_unique<CudaStage<E>>(config, cut, shape, options, compute, groups);
  TRY(stage->open(device));
  return stage;
}

template <class E>
std::size_t bytes_of(const ModelConfig& config, const StageCut& cut, const StageShape& shape) {
  ByteCarver plan(nullptr);
  place_stage<E>(plan, config_of_share(config, shape.share.size), cut, shape);
  return plan.bytes();
}

}  // namespace

Result<std::unique_ptr<TrainableStage>> create_cuda_stage(const ModelConfig& config, const StageCut& cut,
                                                          const StageShape& shape, CudaModelOptions options,
                                                          gpu::Device& device, gpu::StreamView compute,
                                                          DeviceGroups groups) {
  CHECK((shape.share.size > 1) == (groups.layers != nullptr), "members of a group have a share");
  CHECK((shape.context_parallel > 1) == (groups.sequences != nullptr), "members of a group share sequences");
  TRY(check_cuda_model(config, shape.batch, options.dtype, shape.share));
  TRY(check_keep(config, shape.keep));
  TRY(check_split(shape.is_split, shape.keep));
  return options.dtype == core::DType::bf16
             ? create<Bf16>(config, cut, shape, options, device, compute, groups)
             : create<float>(config, cut, shape, options, device, compute, groups);
}

std::size_t cuda_stage_bytes(const ModelConfig& config, const StageCut& cut, const StageShape& shape,
                             core::DType dtype) {
  return dtype == core::DType::bf16 ? bytes_of<Bf16>(config, cut, shape)
                                    : bytes_of<float>(config, cut, shape);
}

}  // namespace troupe::apps::gpt
