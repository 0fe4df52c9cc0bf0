#include "apps/gpt/cuda/cuda_stage.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "apps/gpt/cuda/cuda_engine.hpp"
#include "apps/gpt/cuda/expert_desk.hpp"
#include "apps/gpt/cuda/loss_queue.hpp"
#include "apps/gpt/cuda/token_upload.hpp"
#include "apps/gpt/stage/engine_stage.hpp"
#include "core/disregard.hpp"
#include "core/errors.hpp"
#include "core/list.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps::gpt {

// B batch, T length, N = B*T rows, C width, V vocabulary.

using core::Result;

namespace {

constexpr auto kDeadline = std::chrono::minutes(10);

/// Whether a part of the model reads tokens or targets.
bool reads_text(const ModelConfig& config, ModelPart part) {
  return part.has_begin() || part.has_end(config);
}

/// What a stage has in device memory, whichever part its passes belong to.
template <class E>
struct CudaPlaces {
  StagePlaces<CudaEngine<E>> stage;
  double* losses = nullptr;          ///< (kMostLosses)
  float* next_logits = nullptr;      ///< (V)
  float* all_logits = nullptr;       ///< of the next token, if ranks share the vocabulary
  float* cosine = nullptr;           ///< (context, D/2)
  float* sine = nullptr;             ///< (context, D/2)
  std::vector<std::int32_t*> words;  ///< by slot: what the host sends, if a chunk reads it
};

/// The configuration is that of the share.
template <class E>
CudaPlaces<E> place_all(Carver& carver, const ModelConfig& config, const StageCut& cut,
                        const StageShape& shape) {
  const std::size_t half = config.head_size() / 2;
  CudaPlaces<E> places;
  places.stage = place_stage<CudaEngine<E>>(carver, config, cut, shape);
  places.losses = carver.take<double>(kMostLosses);
  places.next_logits = carver.take<float>(config.vocabulary);
  if (shape.share.size > 1) places.all_logits = carver.take<float>(shape.share.size, config.vocabulary);
  places.cosine = carver.take<float>(config.context, half);
  places.sine = carver.take<float>(config.context, half);
  const bool has_text = std::any_of(cut.parts.begin(), cut.parts.end(),
                                    [&](ModelPart part) { return reads_text(config, part); });
  for (int slot = 0; has_text && slot < shape.slots.activations; ++slot)
    places.words.push_back(carver.take<std::int32_t>(token_words(config, shape.batch)));
  return places;
}

template <class E>
class CudaStage final : public EngineStage<CudaEngine<E>> {
 public:
  CudaStage(ModelOptions options, gpu::StreamView stream) : options_(options), stream_(stream) {}
  ~CudaStage() override {
    core::disregard(stream_->synchronize(kDeadline), "passes that fail now are missed by nobody");
  }

  /// The configuration is that of the share.
  Result<void> open(const ModelConfig& config, const StageCut& cut, const StageShape& shape,
                    gpu::Device& device, DeviceGroups groups);

  core::DType dtype() const override { return options_.dtype; }

  Result<void> forward(int chunk, PassSlots slots, const StagePass& pass, StageText text) override;
  Result<void> loss(int chunk, int slot, const StagePass& pass, StageText text) override;
  Result<std::vector<StageLoss>> take_losses(std::size_t count) override { return losses_->take(count); }
  Result<void> backward(int chunk, int slot, const StagePass& pass, StageText /*text*/) override {
    return core_->backward(chunk, slot, this->own(pass), text_at(slot), desk(chunk, slot));
  }

  Result<void> forward_sequence(int chunk, const StagePass& pass, TokenSpan tokens) override;
  Result<std::span<const float>> logits_of(int chunk, std::size_t token, const StagePass& pass) override;

 private:
  using EngineStage<CudaEngine<E>>::core_;

  const TokenUpload* text_at(int slot) const { return uploads_.empty() ? nullptr : &uploads_[slot]; }
  ExpertDesk* desk(int chunk, int slot) {
    if (desks_.empty()) return nullptr;
    return &desks_[static_cast<std::size_t>(slot) * chunks_ + static_cast<std::size_t>(chunk)];
  }
  /// The balance losses of the part's layers, behind the rows of a microbatch.
  gpu::BufferView routes_at(E* rows, ModelPart part) const {
    return core_->stream_at(rows).subview(core_->rows_at(rows).bytes + part.first * sizeof(double),
                                          (part.end - part.first) * sizeof(double));
  }
  Result<void> send_angles(gpu::Device& device, const SequenceMember& member);
  void hand_on_routes(int chunk, PassSlots slots);

  ModelOptions options_;
  gpu::StreamView stream_;
  gpu::Buffer memory_;
  CudaPlaces<E> places_;
  std::size_t chunks_ = 0;
  std::unique_ptr<Blas> blas_;
  core::List<int, TokenUpload> uploads_;  ///< per slot, if a chunk reads text
  std::vector<ExpertDesk> desks_;         ///< per slot and chunk, for a model with experts
  std::optional<LossQueue> losses_;       ///< for a stage that ends the model
  gpu::Buffer read_logits_;               ///< pinned
  gpu::Event copied_;                     ///< when logits have reached the host
};

template <class E>
Result<void> CudaStage<E>::open(const ModelConfig& config, const StageCut& cut, const StageShape& shape,
                                gpu::Device& device, DeviceGroups groups) {
  Carver plan(nullptr, CudaEngine<E>::kAlign);
  place_all<E>(plan, config, cut, shape);
  memory_ = TRY(device.allocate(plan.bytes()));
  Carver place(memory_.view().data, CudaEngine<E>::kAlign);
  places_ = place_all<E>(place, config, cut, shape);
  blas_ = TRY(Blas::create(device, stream_, options_.tf32));
  core_.emplace(config, cut, shape, std::move(places_.stage),
                CudaEngine<E>(*blas_, stream_, places_.cosine, places_.sine),
                std::pair(groups.layers, groups.sequences), stream_);
  chunks_ = cut.parts.size();
  for (std::int32_t* words : places_.words)
    uploads_.push_back(
        TRY(TokenUpload::create(device, config, shape.batch, words, shape.share.index * config.vocabulary)));
  const std::size_t desks = static_cast<std::size_t>(shape.slots.activations) * chunks_;
  for (std::size_t i = 0; config.experts.count > 0 && i < desks; ++i)
    desks_.push_back(TRY(ExpertDesk::create(device, config.experts, config.layers, shape.batch.rows(),
                                            shape.context_parallel)));
  copied_ = TRY(device.create_event());
  if (cut.parts.back().has_end(config)) {
    losses_ = TRY(LossQueue::create(device, config.layers));
    read_logits_ = TRY(device.allocate_staging(core_->vocabulary() * sizeof(float)));
  }
  return send_angles(device, member_of(groups.sequences));
}

template <class E>
Result<void> CudaStage<E>::send_angles(gpu::Device& device, const SequenceMember& member) {
  const auto rotary = rotary_of<float>(core_->config(), core_->shape().batch.length, member);
  const std::size_t bytes = rotary.cosine().size_bytes();
  const auto staging = TRY(device.allocate_staging(bytes));
  for (auto [from, to] :
       {std::pair(rotary.cosine(), places_.cosine), std::pair(rotary.sine(), places_.sine)}) {
    gpu::copy(gpu::view_of(from), staging.view());
    gpu::copy(staging.view(), {reinterpret_cast<std::byte*>(to), bytes}, stream_);
    TRY(stream_->synchronize(kDeadline));
  }
  return {};
}

template <class E>
Result<void> CudaStage<E>::forward(int chunk, PassSlots slots, const StagePass& pass, StageText text) {
  if (reads_text(core_->config(), core_->part(chunk))) {
    const std::size_t N = core_->shape().batch.rows();
    CHECK(text.tokens.size() == N && text.targets.size() == N,
          "tokens and targets have the shape given to create()");
    TRY(check_targets(text.targets, core_->vocabulary()));
    TRY(check_tokens(text.tokens, core_->vocabulary()));
    TRY(uploads_[slots.activations].send(text.tokens, text.targets, stream_));
  }
  TRY(core_->forward(chunk, slots, this->own(pass), text_at(slots.activations),
                     desk(chunk, slots.activations)));
  hand_on_routes(chunk, slots);
  return {};
}

/// Appends the balance losses of the layers so far to the output's rows: earlier stages have sent theirs with
/// the input. The device no longer reads what is pinned for earlier passes of the slot: the desk has waited
/// for them.
template <class E>
void CudaStage<E>::hand_on_routes(int chunk, PassSlots slots) {
  const ModelPart part = core_->part(chunk);
  if (desks_.empty() || part.has_end(core_->config())) return;
  const auto& a = core_->activations(chunk, slots.activations);
  if (part.first > 0) {
    gpu::copy(routes_at(core_->input(slots.input), {0, part.first}), routes_at(a.output, {0, part.first}),
              stream_);
  }
  desk(chunk, slots.activations)
      ->send_losses(std::span(a.routes).subspan(part.first, part.end - part.first), routes_at(a.output, part),
                    stream_);
}

template <class E>
Result<void> CudaStage<E>::loss(int chunk, int slot, const StagePass& pass, StageText /*text*/) {
  double* loss = places_.losses + TRY(losses_->next_place());
  TRY(core_->loss(chunk, slot, this->own(pass), text_at(slot), loss));
  const auto& a = core_->activations(chunk, slot);
  std::vector<double> routes;
  gpu::BufferView earlier{};
  if (!desks_.empty()) {
    for (const ExpertRoutes& layer : a.routes) routes.push_back(layer.loss);
    earlier = routes_at(a.blocks.front().input, {0, core_->part(chunk).first});
  }
  losses_->push({reinterpret_cast<const std::byte*>(loss), sizeof(double)}, std::move(routes), earlier,
                stream_);
  return {};
}

template <class E>
Result<void> CudaStage<E>::forward_sequence(int chunk, const StagePass& pass, TokenSpan tokens) {
  CHECK(tokens.size() <= core_->shape().batch.length, "one sequence of 1..T tokens");
  TRY(check_tokens(tokens, core_->vocabulary()));
  if (core_->part(chunk).has_begin()) TRY(uploads_.front().send(tokens, {}, stream_));
  return core_->forward_sequence(chunk, this->own(pass), text_at(0), tokens.size(), desk(chunk, 0));
}

template <class E>
Result<std::span<const float>> CudaStage<E>::logits_of(int chunk, std::size_t token, const StagePass& pass) {
  const E* found = TRY(core_->own_logits_of(chunk, token, this->own(pass)));
  const std::size_t V = core_->config().vocabulary;
  float* logits = places_.next_logits;
  const auto& engine = core_->engine();
  engine.run("widen logits", [&](cudaStream_t stream) { return cuda::widen(V, found, logits, stream); });
  if (const auto* tensor = core_->context(chunk, {}).block.tensor; tensor != nullptr) {
    const DeviceTensorGroup::Counts counts(tensor->group->size(), V);
    TRY(engine.gather(*tensor->group, static_cast<const float*>(logits), places_.all_logits, counts));
    logits = places_.all_logits;
  }
  const auto on_host = read_logits_.view();
  gpu::copy({reinterpret_cast<const std::byte*>(logits), on_host.bytes}, on_host, stream_);
  stream_->record(copied_.get());
  TRY(copied_->wait(kDeadline));
  return std::span<const float>(on_host.as<float>());
}

template <class E>
Result<std::unique_ptr<TrainableStage>> create(const ModelConfig& config, const StageCut& cut,
                                               const StageShape& shape, ModelOptions options,
                                               gpu::Device& device, gpu::StreamView compute,
                                               DeviceGroups groups) {
  auto stage = std::make_unique<CudaStage<E>>(options, compute);
  TRY(stage->open(config_of_share(config, shape.share.size), cut, shape, device, groups));
  return stage;
}

template <class E>
std::size_t bytes_of(const ModelConfig& config, const StageCut& cut, const StageShape& shape) {
  Carver plan(nullptr, CudaEngine<E>::kAlign);
  place_all<E>(plan, config_of_share(config, shape.share.size), cut, shape);
  return plan.bytes();
}

/// For ranks that share layers: a sum in their order takes a slot for each.
constexpr std::size_t kMostMembers = 256;

Result<void> check_cuda_share(const ModelConfig& config, const TensorShare& share) {
  TRY(check_share(config, share));
  if (share.size > kMostMembers) {
    return core::fail(core::Errc::unavailable, "on a GPU at most {} ranks share a layer, found {}; use fewer",
                      kMostMembers, share.size);
  }
  return {};
}

}  // namespace

Result<void> check_cuda_model(const ModelConfig& whole, BatchShape shape, core::DType dtype,
                              const TensorShare& share) {
  TRY(validate(whole));
  TRY(check_shape(whole, shape));
  TRY(check_cuda_share(whole, share));
  const ModelConfig config = config_of_share(whole, share.size);
  const std::string of_share = share.size > 1 ? fmt::format(" of each of {} ranks", share.size) : "";
  if (config.head_size() > cuda::kMostHeadSize) {
    return core::fail(core::Errc::invalid_argument,
                      "on a GPU heads must be at most {} wide, found {}; use more or narrower heads",
                      cuda::kMostHeadSize, config.head_size());
  }
  // A grid has at most 65,535 rows of blocks.
  if (shape.batch * config.heads > 65535) {
    return core::fail(
        core::Errc::invalid_argument,
        "on a GPU sequences x heads must be at most 65535, found {} x {}; use a smaller microbatch",
        shape.batch, config.heads);
  }
  if (dtype != core::DType::bf16 && dtype != core::DType::f32) {
    return core::fail(core::Errc::invalid_argument, "on a GPU the model computes in bf16 or f32, found {}",
                      core::name_of(dtype));
  }
  // Parameters are contiguous, and kernels load 16 bytes at a time.
  const std::size_t step = 16 / core::size_of(dtype);
  if (config.width % step != 0 || config.feed_forward % step != 0) {
    return core::fail(core::Errc::invalid_argument,
                      "on a GPU width and feed_forward{} must be multiples of {} in {}, found {} and {}",
                      of_share, step, core::name_of(dtype), config.width, config.feed_forward);
  }
  if (config.experts.count > 0 &&
      (config.experts.feed_forward % step != 0 || config.experts.shared_feed_forward % step != 0)) {
    return core::fail(core::Errc::invalid_argument,
                      "on a GPU the feed_forward of experts must be multiples of {} in {}, found {} and {}",
                      step, core::name_of(dtype), config.experts.feed_forward,
                      config.experts.shared_feed_forward);
  }
  if (config.query_width() % step != 0 || config.key_width() % step != 0 ||
      (config.query_key_norm && config.head_size() % step != 0)) {
    return core::fail(
        core::Errc::invalid_argument,
        "on a GPU heads and key_value_heads{} times their width must be multiples of {} in {}, and "
        "so must that width where queries and keys have norms; found {} and {} heads of {}",
        of_share, step, core::name_of(dtype), config.heads, config.key_heads(), config.head_size());
  }
  return {};
}

Result<std::unique_ptr<TrainableStage>> create_cuda_stage(const ModelConfig& config, const StageCut& cut,
                                                          const StageShape& shape, ModelOptions options,
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
