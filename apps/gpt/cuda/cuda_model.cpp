#include "apps/gpt/cuda/cuda_model.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "apps/gpt/cuda/cuda_block.hpp"
#include "apps/gpt/cuda/experts/expert_desk.hpp"
#include "apps/gpt/cuda/kernels.hpp"
#include "apps/gpt/cuda/token_upload.hpp"
#include "apps/gpt/layers/cross_entropy.hpp"
#include "apps/gpt/layers/rotary.hpp"
#include "core/disregard.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps::gpt {

// B batch, T length, N = B*T rows, C width, V vocabulary.

using core::Errc;
using core::fail;
using core::Result;

namespace {

constexpr auto kDeadline = std::chrono::minutes(10);

template <class E>
std::size_t activation_bytes_of(const ModelConfig& config, BatchShape shape, Keep keep) {
  ByteCarver plan(nullptr);
  carve<E>(plan, config, shape, keep);
  return plan.bytes();
}

template <class E>
class CudaModel final : public TrainableModel {
 public:
  CudaModel(const ModelConfig& config, BatchShape shape, CudaModelOptions options, gpu::StreamView stream)
      : config_(config),
        shape_(shape),
        options_(options),
        table_(parameter_table(config)),
        stream_(stream),
        tally_(config.layers, config.experts.count) {}
  ~CudaModel() override {
    core::disregard(stream_->synchronize(kDeadline), "passes that fail now are missed by nobody");
  }

  Result<void> open(gpu::Device& device);

  const ModelConfig& config() const override { return config_; }
  const ParameterTable& table() const override { return table_; }
  BatchShape shape() const override { return shape_; }
  core::DType dtype() const override { return options_.dtype; }
  std::size_t activation_bytes() const override { return memory_.bytes(); }

  Result<void> forward_backward(Parameters parameters, Gradients gradients, Tokens tokens, Tokens targets,
                                const StepHooks& hooks) override;
  Result<void> forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                            const StepHooks& hooks) override;
  Result<std::vector<double>> take_losses() override;
  ExpertTally take_expert_tally() override {
    return std::exchange(tally_, {config_.layers, config_.experts.count});
  }
  Result<std::span<const float>> logits(Parameters parameters, Tokens tokens,
                                        const StepHooks& hooks) override;

 private:
  CudaContext context(BatchShape shape) {
    return {config_, shape,   activations_.cosine,      activations_.sine,
            *blas_,  stream_, desk_ ? &*desk_ : nullptr};
  }
  cuda::CrossEntropy<E> entropy() const {
    return {shape_.rows(),        config_.vocabulary,      upload_->place().targets, activations_.logits,
            activations_.log_sum, activations_.row_losses, upload_->learned()};
  }
  Result<void> send_angles(gpu::Device& device);
  Result<void> loss(const CudaPass<E>& pass, Tokens tokens, Tokens targets);
  Result<void> trunk_forward(BatchShape shape, const CudaPass<E>& pass);
  Result<void> backward(const CudaPass<E>& pass);
  Result<void> fetch_losses();
  Result<void> wait_for_copy();

  ModelConfig config_;
  BatchShape shape_;
  CudaModelOptions options_;
  ParameterTable table_;
  gpu::StreamView stream_;
  gpu::Buffer memory_;
  CudaActivations<E> activations_;
  std::unique_ptr<Blas> blas_;
  std::optional<TokenUpload> upload_;
  gpu::Buffer read_back_;  ///< pinned: losses or logits
  gpu::Event copied_;
  std::size_t pending_ = 0;                          ///< losses on the device
  std::vector<double> losses_;                       ///< taken from it
  std::optional<ExpertDesk> desk_;                   ///< of a model with experts
  std::array<double, kMostLosses> router_losses_{};  ///< what each of those on the device is more
  ExpertTally tally_;
};

template <class E>
Result<void> CudaModel<E>::open(gpu::Device& device) {
  memory_ = TRY(device.allocate(activation_bytes_of<E>(config_, shape_, options_.keep)));
  ByteCarver place(memory_.view().data);
  activations_ = carve<E>(place, config_, shape_, options_.keep);
  blas_ = TRY(Blas::create(device, stream_, options_.tf32));
  upload_ = TRY(TokenUpload::create(device, config_, shape_, activations_.words));
  read_back_ = TRY(
      device.allocate_staging(std::max(kMostLosses * sizeof(double), config_.vocabulary * sizeof(float))));
  copied_ = TRY(device.create_event());
  if (config_.experts.count > 0)
    desk_ = TRY(ExpertDesk::create(device, config_.experts, config_.layers, shape_.rows()));
  return send_angles(device);
}

template <class E>
Result<void> CudaModel<E>::send_angles(gpu::Device& device) {
  const Rotary<float> rotary(config_.context, config_.head_size(), config_.rope_base, config_.rope_scaling);
  const std::size_t bytes = rotary.cosine().size_bytes();
  const auto staging = TRY(device.allocate_staging(bytes));
  for (auto [from, to] :
       {std::pair(rotary.cosine(), activations_.cosine), std::pair(rotary.sine(), activations_.sine)}) {
    gpu::copy(gpu::view_of(from), staging.view());
    gpu::copy(staging.view(), {reinterpret_cast<std::byte*>(to), bytes}, stream_);
    TRY(stream_->synchronize(kDeadline));
  }
  return {};
}

template <class E>
Result<void> CudaModel<E>::forward_backward(Parameters parameters, Gradients gradients, Tokens tokens,
                                            Tokens targets, const StepHooks& hooks) {
  CHECK(gradients.size() == table_.specs.size(), "one gradient pointer per parameter of the table");
  const CudaPass<E> pass{parameters, gradients, hooks};
  TRY(loss(pass, tokens, targets));
  if (desk_) {
    for (const ExpertRoutes& routes : desk_->routes()) router_losses_[pending_ - 1] += routes.loss;
    tally_.add(desk_->routes());
  }
  return backward(pass);
}

template <class E>
Result<void> CudaModel<E>::forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                                        const StepHooks& hooks) {
  return loss({parameters, {}, hooks}, tokens, targets);
}

template <class E>
Result<std::vector<double>> CudaModel<E>::take_losses() {
  TRY(fetch_losses());
  return std::exchange(losses_, {});
}

template <class E>
Result<void> CudaModel<E>::fetch_losses() {
  if (pending_ == 0) return {};
  const std::size_t count = std::exchange(pending_, 0), bytes = count * sizeof(double);
  const auto read_back = read_back_.view().subview(0, bytes);
  gpu::copy({reinterpret_cast<const std::byte*>(activations_.losses), bytes}, read_back, stream_);
  TRY(wait_for_copy());
  const auto values = read_back.as<double>();
  for (std::size_t i = 0; i < count; ++i) losses_.push_back(values[i] + router_losses_[i]);
  return {};
}

template <class E>
Result<void> CudaModel<E>::wait_for_copy() {
  stream_->record(copied_.get());
  return copied_->wait(kDeadline);
}

template <class E>
Result<std::span<const float>> CudaModel<E>::logits(Parameters parameters, Tokens tokens,
                                                    const StepHooks& hooks) {
  CHECK(!tokens.empty() && tokens.size() <= shape_.length, "logits() takes one sequence of 1..T tokens");
  TRY(check_tokens(tokens, config_.vocabulary));
  TRY(upload_->send(tokens, {}, stream_));
  const CudaPass<E> pass{parameters, {}, hooks};
  TRY(trunk_forward({1, tokens.size()}, pass));
  const std::size_t C = config_.width, V = config_.vocabulary;
  const E* last = activations_.final_norm.output + (tokens.size() - 1) * C;
  blas_->linear_forward({1, C, V}, last, TRY(pass.use(table_.head)), activations_.logits);
  context(shape_).run("widen logits", [&](cudaStream_t stream) {
    return cuda::widen(V, activations_.logits, activations_.next_logits, stream);
  });
  const auto read_back = read_back_.view().subview(0, V * sizeof(float));
  gpu::copy({reinterpret_cast<const std::byte*>(activations_.next_logits), read_back.bytes}, read_back,
            stream_);
  TRY(wait_for_copy());
  return std::span<const float>(read_back.as<float>());
}

template <class E>
Result<void> CudaModel<E>::loss(const CudaPass<E>& pass, Tokens tokens, Tokens targets) {
  const std::size_t N = shape_.rows(), C = config_.width, V = config_.vocabulary;
  CHECK(tokens.size() == N && targets.size() == N, "tokens and targets have the shape given to create()");
  TRY(check_targets(targets, V));
  TRY(check_tokens(tokens, V));
  if (pending_ == kMostLosses) TRY(fetch_losses());
  TRY(upload_->send(tokens, targets, stream_));
  TRY(trunk_forward(shape_, pass));
  blas_->linear_forward({N, C, V}, activations_.final_norm.output, TRY(pass.use(table_.head)),
                        activations_.logits);
  router_losses_[pending_] = 0;
  double* mean = activations_.losses + pending_++;
  context(shape_).run("cross entropy", [&](cudaStream_t stream) {
    return cuda::cross_entropy_forward(entropy(), mean, stream);
  });
  return {};
}

// Tokens to the normed residual stream before the output layer.
template <class E>
Result<void> CudaModel<E>::trunk_forward(BatchShape shape, const CudaPass<E>& pass) {
  CHECK(pass.parameters.size() == table_.specs.size(), "one pointer per parameter of the table");
  auto& a = activations_;
  const CudaContext with = context(shape);
  const E* embedding = TRY(pass.use(table_.embedding));
  with.run("embedding", [&](cudaStream_t stream) {
    return cuda::embedding_forward(upload_->place().tokens, shape.rows(), config_.width, embedding,
                                   a.blocks.front().input, stream);
  });
  for (std::size_t layer = 0; layer < a.blocks.size(); ++layer) {
    E* output = layer + 1 < a.blocks.size() ? a.blocks[layer + 1].input : a.output;
    TRY(block_forward(with, table_.blocks[layer], a.blocks[layer], pass, output));
  }
  return norm_forward(with, table_.final_norm, a.output, a.final_norm, pass);
}

template <class E>
Result<void> CudaModel<E>::backward(const CudaPass<E>& pass) {
  const std::size_t N = shape_.rows(), C = config_.width, V = config_.vocabulary;
  auto& a = activations_;
  const auto& d = a.gradients;
  const CudaContext with = context(shape_);

  if (pass.hooks.begin_backward) TRY(pass.hooks.begin_backward());
  auto gradient = entropy();
  gradient.scale = static_cast<float>(pass.hooks.loss_scale);
  with.run("cross entropy backward",
           [&](cudaStream_t stream) { return cuda::cross_entropy_backward(gradient, stream); });
  const E* head = TRY(pass.use(table_.head));
  blas_->linear_backward_weight({N, C, V}, a.logits, a.final_norm.output, pass.gradient(table_.head));
  if (!config_.tied_embeddings) pass.ready(table_.head);
  blas_->linear_backward_input({N, C, V}, a.logits, head, d.normed);

  gpu::zero({reinterpret_cast<std::byte*>(d.residual), N * C * sizeof(E)}, stream_);
  TRY(norm_backward(with, table_.final_norm, a.output, a.final_norm, d, pass));
  for (std::size_t layer = a.blocks.size(); layer-- > 0;) {
    // Those of the last block are still there.
    if (options_.keep == Keep::inputs && layer + 1 < a.blocks.size())
      TRY(block_activations(with, table_.blocks[layer], a.blocks[layer], pass));
    TRY(block_backward(with, table_.blocks[layer], a.blocks[layer], d, pass));
  }
  TRY(pass.use(table_.embedding));
  with.run("embedding backward", [&](cudaStream_t stream) {
    return cuda::embedding_backward(upload_->order(), C, d.residual, d.partials,
                                    pass.gradient(table_.embedding), stream);
  });
  pass.ready(table_.embedding);
  return {};
}

// What only the host's model does so far.
Result<void> check_kind(const ModelConfig& config) {
  if (config.experts.ranks == 1) return {};
  return fail(
      Errc::invalid_argument,
      "on a GPU experts are not spread over ranks yet, found {} ranks; leave out --expert-parallel, or "
      "train with --device host",
      config.experts.ranks);
}

Result<void> check(const ModelConfig& config, BatchShape shape, core::DType dtype) {
  TRY(validate(config));
  TRY(check_kind(config));
  TRY(check_shape(config, shape));
  if (config.head_size() > cuda::kMostHeadSize) {
    return fail(Errc::invalid_argument,
                "on a GPU heads must be at most {} wide, found {}; use more or narrower heads",
                cuda::kMostHeadSize, config.head_size());
  }
  // A grid has at most 65,535 rows of blocks.
  if (shape.batch * config.heads > 65535) {
    return fail(Errc::invalid_argument,
                "on a GPU sequences x heads must be at most 65535, found {} x {}; use a smaller microbatch",
                shape.batch, config.heads);
  }
  if (dtype != core::DType::bf16 && dtype != core::DType::f32) {
    return fail(Errc::invalid_argument, "on a GPU the model computes in bf16 or f32, found {}",
                core::name_of(dtype));
  }
  // Parameters lie one after the other, and kernels load 16 bytes at once.
  const std::size_t step = 16 / core::size_of(dtype);
  if (config.width % step != 0 || config.feed_forward % step != 0) {
    return fail(Errc::invalid_argument,
                "on a GPU width and feed_forward must be multiples of {} in {}, found {} and {}", step,
                core::name_of(dtype), config.width, config.feed_forward);
  }
  if (config.experts.count > 0 &&
      (config.experts.feed_forward % step != 0 || config.experts.shared_feed_forward % step != 0)) {
    return fail(Errc::invalid_argument,
                "on a GPU the feed_forward of experts must be multiples of {} in {}, found {} and {}", step,
                core::name_of(dtype), config.experts.feed_forward, config.experts.shared_feed_forward);
  }
  if (config.query_width() % step != 0 || config.key_width() % step != 0 ||
      (config.query_key_norm && config.head_size() % step != 0)) {
    return fail(Errc::invalid_argument,
                "on a GPU heads and key_value_heads times their width must be multiples of {} in {}, and so "
                "must that width where queries and keys have norms; found {} and {} heads of {}",
                step, core::name_of(dtype), config.heads, config.key_heads(), config.head_size());
  }
  return {};
}

template <class E>
Result<std::unique_ptr<TrainableModel>> create(const ModelConfig& config, BatchShape shape,
                                               CudaModelOptions options, gpu::Device& device,
                                               gpu::StreamView compute) {
  auto model = std::make_unique<CudaModel<E>>(config, shape, options, compute);
  TRY(model->open(device));
  return model;
}

}  // namespace

Result<std::unique_ptr<TrainableModel>> create_cuda_model(const ModelConfig& config, BatchShape shape,
                                                          CudaModelOptions options, gpu::Device& device,
                                                          gpu::StreamView compute) {
  TRY(check(config, shape, options.dtype));
  TRY(check_keep(config, options.keep));
  return options.dtype == core::DType::bf16 ? create<Bf16>(config, shape, options, device, compute)
                                            : create<float>(config, shape, options, device, compute);
}

std::size_t cuda_activation_bytes(const ModelConfig& config, BatchShape shape, core::DType dtype, Keep keep) {
  return dtype == core::DType::bf16 ? activation_bytes_of<Bf16>(config, shape, keep)
                                    : activation_bytes_of<float>(config, shape, keep);
}

}  // namespace troupe::apps::gpt
