#pragma once

#include <string>
#include <utility>

#include "apps/gpt/cuda/cuda_model.hpp"
#include "apps/gpt/model.hpp"
#include "core/random.hpp"
#include "tests/apps_gpt/tensors.hpp"
#include "tests/apps_gpt_cuda/test_gpu.hpp"

namespace troupe::apps::gpt {

using core::DType;

struct Case {
  const char* name;
  DType dtype;
  Norm norm;
  Activation activation;
  bool tied;
  BatchShape shape;
};

inline constexpr Case kCases[] = {
    {"f32_rms_swiglu_tied", DType::f32, Norm::rms, Activation::swiglu, true, {2, 6}},
    {"f32_layer_gelu_untied", DType::f32, Norm::layer, Activation::gelu, false, {3, 5}},
    {"f32_longer_than_a_tile", DType::f32, Norm::rms, Activation::gelu, false, {1, 67}},
    {"bf16_rms_swiglu_tied", DType::bf16, Norm::rms, Activation::swiglu, true, {2, 6}},
    {"bf16_layer_gelu_untied", DType::bf16, Norm::layer, Activation::gelu, false, {3, 5}},
    {"bf16_longer_than_a_tile", DType::bf16, Norm::layer, Activation::swiglu, true, {1, 67}},
};

// Gradients pass some twenty matrices, each of which rounds what it reads and writes: to 2^-24 in f32, to
// 2^-9 in bf16. As shares of a tensor's largest magnitude.
inline double gradient_tolerance(DType dtype) {
  return dtype == DType::f32 ? 1e-5 : 5e-2;
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
  return config;
}

inline std::vector<std::int32_t> some_tokens(const BatchShape& shape, std::uint64_t seed) {
  const core::CounterRandom random(seed, "tokens");
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < shape.rows(); ++i) {
    tokens.push_back(static_cast<std::int32_t>(random.bits(i) % (i % 3 == 0 ? 4 : 40)));
  }
  return tokens;
}

/// A model with its parameters, which the host holds too, and zeroed gradients.
class OnGpu {
 public:
  explicit OnGpu(const Case& of, Keep keep = Keep::activations)
      : model_(
            create_cuda_model(config_of(of), of.shape, {of.dtype, false, keep}, gpu_.device(), gpu_.stream())
                .value()),
        values(initial_parameters(model_->table().specs, 1)) {
    for (auto& tensor : values.tensors) {
      parameters_.push_back(reinterpret_cast<const std::byte*>(
          of.dtype == DType::f32 ? reinterpret_cast<const std::byte*>(gpu_.put<float>(tensor))
                                 : reinterpret_cast<const std::byte*>(gpu_.put<Bf16>(tensor))));
      gradients_.push_back(gpu_.room<float>(tensor.size()));
    }
  }

  double pass(std::uint64_t seed, const StepHooks& hooks = {}) {
    const auto tokens = some_tokens(model_->shape(), seed),
               targets = some_tokens(model_->shape(), seed + 100);
    EXPECT_TRUE(model_->forward_backward(parameters_, gradients_, tokens, targets, hooks));
    return model_->take_losses().value().at(0);
  }

  double loss(std::uint64_t seed) {
    const auto tokens = some_tokens(model_->shape(), seed),
               targets = some_tokens(model_->shape(), seed + 100);
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

  TrainableModel& model() { return *model_; }
  TrainableModel::Parameters parameters() const { return parameters_; }

 private:
  TestGpu gpu_;
  std::unique_ptr<TrainableModel> model_;
  std::vector<const std::byte*> parameters_;
  std::vector<float*> gradients_;

 public:
  Tensors<float> values;
};

/// The reference, in fp64, from the same values.
struct OnHost {
  explicit OnHost(const Case& of, const Tensors<float>& from)
      : model(BasicModel<double>::create(config_of(of), of.shape).value()),
        values(model.table().specs),
        gradients(model.table().specs) {
    for (std::size_t i = 0; i < values.tensors.size(); ++i) {
      values.tensors[i].assign(from.tensors[i].begin(), from.tensors[i].end());
    }
  }

  double pass(std::uint64_t seed) {
    return model
        .forward_backward(values.constant(), gradients.pointers(), some_tokens(model.shape(), seed),
                          some_tokens(model.shape(), seed + 100))
        .value();
  }

  BasicModel<double> model;
  Tensors<double> values;
  Tensors<double> gradients;
};

}  // namespace troupe::apps::gpt
