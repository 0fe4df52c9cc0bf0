#pragma once

#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "apps/gpt/cuda/cuda_stage.hpp"
#include "apps/gpt/layers/cross_entropy.hpp"
#include "core/errors.hpp"
#include "core/random.hpp"
#include "tests/apps_gpt/tensors.hpp"
#include "tests/apps_gpt/typed_model.hpp"
#include "tests/apps_gpt/uncut_model.hpp"
#include "tests/apps_gpt_cuda/test_gpu.hpp"

namespace troupe::apps::gpt {

using core::DType;

/// What decoders differ in beside norms and activations. 0 is the preset's.
struct Decoder {
  std::size_t heads = 0;
  std::size_t key_heads = 0;
  std::size_t head_size = 0;
  bool input_biases = false;  ///< of queries, keys and values
  bool output_bias = false;
  bool head_norms = false;
  bool is_masked = false;  ///< some targets are not learned
};

/// Like ExpertConfig; 0 experts: none.
struct Mixture {
  std::size_t experts = 0;
  std::size_t choices = 2;
  std::size_t shared = 0;
  bool has_shared_gate = false;
  bool score_first = false;
  double capacity = 0;  ///< 0: nothing is dropped
  bool is_first_dense = false;
  bool has_ties = false;    ///< all experts are as good for every token
  bool has_biases = false;  ///< later experts are chosen more often
};

struct Case {
  const char* name;
  DType dtype;
  Norm norm;
  Activation activation;
  bool tied;
  BatchShape shape;
  Decoder decoder{};
  Mixture mixture{};
};

inline void PrintTo(const Case& of, std::ostream* out) {
  *out << of.name;
}

/// Which parameters a pass has asked for ('u') and whose gradients it has completed ('r').
using HookCalls = std::vector<std::pair<char, std::size_t>>;

/// `calls` must outlive the pass.
inline StepHooks hooks_that_note(HookCalls& calls) {
  return {.before_use =
              [&calls](std::size_t parameter) {
                calls.emplace_back('u', parameter);
                return core::Result<void>{};
              },
          .gradient_ready = [&calls](std::size_t parameter) { calls.emplace_back('r', parameter); }};
}

/// Hooks of a pass whose losses are sums over targets, not means.
inline StepHooks hooks_of_sums() {
  StepHooks hooks;
  hooks.loss_rows = 5;
  hooks.router_factor = 0.375;
  return hooks;
}

/// A case whose layers members share, and with `sequence` the rows between them too.
struct SharedCase {
  Case of;
  std::size_t size;
  bool sequence;

  friend std::ostream& operator<<(std::ostream& out, const SharedCase& shared) {
    return out << shared.of.name << "_over_" << shared.size << (shared.sequence ? "_by_rows" : "");
  }
};

inline constexpr Decoder kLlama{.heads = 4, .key_heads = 2};
inline constexpr Decoder kQwen2{.heads = 6, .key_heads = 2, .head_size = 12, .input_biases = true};
inline constexpr Decoder kQwen3{.heads = 4, .key_heads = 1, .head_size = 8, .head_norms = true};
inline constexpr Decoder kEverything{.heads = 6,
                                     .key_heads = 2,
                                     .head_size = 24,
                                     .input_biases = true,
                                     .output_bias = true,
                                     .head_norms = true,
                                     .is_masked = true};
inline constexpr Decoder kMasked{.is_masked = true};

inline constexpr Case kCases[] = {
    {"f32_rms_swiglu_tied", DType::f32, Norm::rms, Activation::swiglu, true, {2, 6}},
    {"f32_layer_gelu_untied", DType::f32, Norm::layer, Activation::gelu, false, {3, 5}},
    {"f32_longer_than_a_tile", DType::f32, Norm::rms, Activation::gelu, false, {1, 67}},
    {"bf16_rms_swiglu_tied", DType::bf16, Norm::rms, Activation::swiglu, true, {2, 6}},
    {"bf16_layer_gelu_untied", DType::bf16, Norm::layer, Activation::gelu, false, {3, 5}},
    {"bf16_longer_than_a_tile", DType::bf16, Norm::layer, Activation::swiglu, true, {1, 67}},
    {"f32_llama", DType::f32, Norm::rms, Activation::swiglu, false, {2, 7}, kLlama},
    {"f32_qwen2", DType::f32, Norm::rms, Activation::swiglu, true, {2, 7}, kQwen2},
    {"f32_qwen3_longer_than_a_tile", DType::f32, Norm::rms, Activation::swiglu, true, {1, 67}, kQwen3},
    {"f32_everything", DType::f32, Norm::layer, Activation::gelu, false, {3, 5}, kEverything},
    {"f32_masked", DType::f32, Norm::rms, Activation::swiglu, true, {2, 6}, kMasked},
    {"bf16_llama", DType::bf16, Norm::rms, Activation::swiglu, false, {2, 7}, kLlama},
    {"bf16_qwen2", DType::bf16, Norm::rms, Activation::swiglu, true, {2, 7}, kQwen2},
    {"bf16_qwen3_longer_than_a_tile", DType::bf16, Norm::rms, Activation::swiglu, true, {1, 67}, kQwen3},
    {"bf16_everything", DType::bf16, Norm::layer, Activation::gelu, false, {3, 5}, kEverything},
};

// Gradients pass some twenty matrices, each of which rounds what it reads and writes: to 2^-24 in f32, to
// 2^-9 in bf16. As shares of a tensor's largest magnitude.
inline double gradient_tolerance(DType dtype) {
  return dtype == DType::f32 ? 1e-5 : 5e-2;
}
#if __has_include(<emulated_fragments.hpp>)
inline constexpr bool kIsEmulated = true;
#else
inline constexpr bool kIsEmulated = false;
#endif

/// A GPU's order of additions is its own, so the largest of its errors in bf16 says more of the number of
/// elements than of the kernels; there their root mean square is compared, everywhere else both.
inline void expect_gradient(DType dtype, const std::vector<float>& found, const std::vector<double>& expected,
                            const std::string& name) {
  const double tolerance = gradient_tolerance(dtype);
  if (dtype == DType::f32 || kIsEmulated) {
    EXPECT_LT(difference(found, expected), tolerance) << name;
  }
  EXPECT_LT(mean_difference(found, expected), tolerance) << name;
}
inline double loss_tolerance(DType dtype) {
  return dtype == DType::f32 ? 1e-6 : 5e-3;
}

inline ModelConfig config_of(const Case& of) {
  ModelConfig config = preset("tiny").value();
  config.context = std::max(config.context, of.shape.length);
  config.vocabulary = 40;
  config.norm = of.norm;
  config.activation = of.activation;
  config.tied_embeddings = of.tied;
  config.initial_deviation = 0.2;  // so that attention attends to something
  const Decoder& decoder = of.decoder;
  if (decoder.heads > 0) config.heads = decoder.heads;
  config.key_value_heads = decoder.key_heads;
  config.head_dimension = decoder.head_size;
  config.query_key_value_bias = decoder.input_biases;
  config.attention_output_bias = decoder.output_bias;
  config.query_key_norm = decoder.head_norms;
  const Mixture& mixture = of.mixture;
  if (mixture.experts == 0) return config;
  config.experts = {.count = mixture.experts,
                    .choices = mixture.choices,
                    .feed_forward = 24,
                    .shared_feed_forward = mixture.shared,
                    .shared_gate = mixture.has_shared_gate,
                    .score_before_choice = mixture.score_first,
                    .balance = 0.1,
                    .z_loss = 0.01};
  if (mixture.capacity > 0) config.experts.capacity_factor = mixture.capacity;
  if (mixture.is_first_dense) config.experts.dense_layers = {0};
  if (mixture.has_biases) {
    std::vector<float> biases;
    for (std::size_t layer = 1; layer <= config.layers; ++layer) {
      for (std::size_t expert = 0; expert < mixture.experts; ++expert)
        biases.push_back(0.1F * static_cast<float>(expert * layer));
    }
    config.experts.bias_rate = 0.01;
    config.experts.biases = std::make_shared<const std::vector<float>>(std::move(biases));
  }
  return config;
}

/// Norms and biases begin as constants, which would hide what is added or multiplied wrongly.
inline Tensors<float> varied_parameters(const std::vector<ParameterSpec>& specs) {
  auto values = initial_parameters(specs, 1);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].shape.size() > 1) continue;
    const core::CounterRandom random(1, specs[i].name);
    for (std::size_t k = 0; k < values.tensors[i].size(); ++k)
      values.tensors[i][k] += 0.3F * random.normal(k);
  }
  return values;
}

inline std::vector<std::int32_t> some_tokens(const BatchShape& shape, std::uint64_t seed) {
  const core::CounterRandom random(seed, "tokens");
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < shape.rows(); ++i) {
    tokens.push_back(static_cast<std::int32_t>(random.bits(i) % (i % 3 == 0 ? 4 : 40)));
  }
  return tokens;
}

/// A third of a masked case is not learned.
inline std::vector<std::int32_t> some_targets(const BatchShape& shape, std::uint64_t seed, bool is_masked) {
  auto targets = some_tokens(shape, seed + 100);
  for (std::size_t i = seed % 3; is_masked && i < targets.size(); i += 3) targets[i] = kNoTarget;
  return targets;
}

/// A whole model, which a group may share the layers of.
inline core::Result<std::unique_ptr<UncutModel>> create_cuda_model(
    const ModelConfig& config, BatchShape shape, ModelOptions options, gpu::Device& device,
    gpu::StreamView compute, const TensorShare& share = {}, DeviceTensorGroup* group = nullptr) {
  const StageShape whole{.batch = shape, .keep = options.keep, .share = share};
  auto stage = TRY(create_cuda_stage(config, uncut(config), whole, options, device, compute, {group}));
  return std::make_unique<UncutModel>(config, shape, std::move(stage),
                                      cuda_stage_bytes(config, uncut(config), whole, options.dtype));
}

/// A model with its parameters, which the host holds too, and zeroed gradients.
class OnGpu {
 public:
  explicit OnGpu(const Case& of, Keep keep = Keep::activations)
      : model_(
            create_cuda_model(config_of(of), of.shape, {of.dtype, false, keep}, gpu_.device(), gpu_.stream())
                .value()),
        is_masked_(of.decoder.is_masked),
        values(varied_parameters(model_->table().specs)) {
    for (const auto& block : model_->table().blocks) {
      if (!of.mixture.has_ties || !block.experts) continue;
      auto& router = values.tensors[block.experts->router];
      std::fill(router.begin(), router.end(), 0.0F);
    }
    for (auto& tensor : values.tensors) {
      parameters_.push_back(gpu_.put(tensor, of.dtype));
      gradients_.push_back(gpu_.room<float>(tensor.size()));
    }
  }

  double pass(std::uint64_t seed, const StepHooks& hooks = {}) {
    const auto tokens = some_tokens(model_->shape(), seed),
               targets = some_targets(model_->shape(), seed, is_masked_);
    EXPECT_TRUE(model_->forward_backward(parameters_, gradients_, tokens, targets, hooks));
    return model_->take_losses().value().at(0);
  }

  double loss(std::uint64_t seed) {
    const auto tokens = some_tokens(model_->shape(), seed),
               targets = some_targets(model_->shape(), seed, is_masked_);
    EXPECT_TRUE(model_->forward_loss(parameters_, tokens, targets, {}));
    return model_->take_losses().value().at(0);
  }

  std::vector<std::vector<float>> gradients() {
    std::vector<std::vector<float>> all;
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      all.push_back(gpu_.get(gradients_[i], values.tensors[i].size()));
    }
    return all;
  }

  void clear_gradients() {
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      gpu::zero({reinterpret_cast<std::byte*>(gradients_[i]), values.tensors[i].size() * sizeof(float)},
                gpu_.stream());
    }
  }

  UncutModel& model() { return *model_; }
  UncutModel::Parameters parameters() const { return parameters_; }
  UncutModel::Gradients gradient_pointers() { return gradients_; }

 private:
  TestGpu gpu_;
  std::unique_ptr<UncutModel> model_;
  std::vector<const std::byte*> parameters_;
  std::vector<float*> gradients_;
  bool is_masked_;

 public:
  Tensors<float> values;
};

/// The reference, in fp64, from the same values.
struct OnHost {
  explicit OnHost(const Case& of, const Tensors<float>& from)
      : model(BasicModel<double>::create(config_of(of), of.shape).value()),
        values(model.table().specs),
        gradients(model.table().specs),
        is_masked(of.decoder.is_masked) {
    for (std::size_t i = 0; i < values.tensors.size(); ++i) {
      values.tensors[i].assign(from.tensors[i].begin(), from.tensors[i].end());
    }
  }

  double pass(std::uint64_t seed, const StepHooks& hooks = {}) {
    return model
        .forward_backward(values.constant(), gradients.pointers(), some_tokens(model.shape(), seed),
                          some_targets(model.shape(), seed, is_masked), hooks)
        .value();
  }

  BasicModel<double> model;
  Tensors<double> values;
  Tensors<double> gradients;
  bool is_masked;
};

}  // namespace troupe::apps::gpt
