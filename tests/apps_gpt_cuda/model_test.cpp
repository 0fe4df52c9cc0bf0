#include "apps/gpt/cuda/cuda_model.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "apps/gpt/model.hpp"
#include "core/random.hpp"
#include "tests/apps_gpt/tensors.hpp"
#include "tests/apps_gpt_cuda/emulated_gpu.hpp"
#include "tests/cuda_emulation/control.hpp"

namespace troupe::apps::gpt {
namespace {

using core::DType;

struct Case {
  const char* name;
  DType dtype;
  Norm norm;
  Activation activation;
  bool tied;
  BatchShape shape;
};

constexpr Case kCases[] = {
    {"f32_rms_swiglu_tied", DType::f32, Norm::rms, Activation::swiglu, true, {2, 6}},
    {"f32_layer_gelu_untied", DType::f32, Norm::layer, Activation::gelu, false, {3, 5}},
    {"f32_longer_than_a_tile", DType::f32, Norm::rms, Activation::gelu, false, {1, 67}},
    {"bf16_rms_swiglu_tied", DType::bf16, Norm::rms, Activation::swiglu, true, {2, 6}},
    {"bf16_layer_gelu_untied", DType::bf16, Norm::layer, Activation::gelu, false, {3, 5}},
    {"bf16_longer_than_a_tile", DType::bf16, Norm::layer, Activation::swiglu, true, {1, 67}},
};

// Gradients pass some twenty matrices, each of which rounds what it reads and writes: to 2^-24 in f32, to
// 2^-9 in bf16. As shares of a tensor's largest magnitude.
double gradient_tolerance(DType dtype) {
  return dtype == DType::f32 ? 1e-5 : 5e-2;
}
double loss_tolerance(DType dtype) {
  return dtype == DType::f32 ? 1e-6 : 5e-3;
}

ModelConfig config_of(const Case& of) {
  ModelConfig config = preset("tiny").value();
  config.context = std::max(config.context, of.shape.length);
  config.vocabulary = 40;
  config.norm = of.norm;
  config.activation = of.activation;
  config.tied_embeddings = of.tied;
  config.initial_deviation = 0.2;  // so that attention attends to something
  return config;
}

std::vector<std::int32_t> some_tokens(const BatchShape& shape, std::uint64_t seed) {
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
  explicit OnGpu(const Case& of)
      : model_(create_cuda_model(config_of(of), of.shape, {of.dtype, false}, gpu_.device(), gpu_.stream())
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
    EXPECT_TRUE(model_->forward_loss(parameters_, tokens, targets));
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
  EmulatedGpu gpu_;
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

class CudaModelTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, CudaModelTest, testing::ValuesIn(kCases),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(CudaModelTest, HasTheHostsLossAndGradients) {
  OnGpu gpu(GetParam());
  OnHost host(GetParam(), gpu.values);

  for (const std::uint64_t seed : {1, 2}) {
    const double expected = host.pass(seed);
    EXPECT_NEAR(gpu.pass(seed), expected, loss_tolerance(GetParam().dtype) * expected);
    EXPECT_NEAR(gpu.loss(seed), expected, loss_tolerance(GetParam().dtype) * expected);
  }

  const auto gradients = gpu.gradients();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_LT(difference(gradients[i], host.gradients.tensors[i]), gradient_tolerance(GetParam().dtype))
        << host.model.table().specs[i].name;
  }
}

TEST_P(CudaModelTest, GivesTheSameBitsWhateverCameBefore) {
  OnGpu one(GetParam()), other(GetParam());
  const double first = one.pass(1);
  const auto first_gradients = one.gradients();
  one.clear_gradients();

  const double second = one.pass(2);
  other.pass(3);
  other.clear_gradients();
  const double other_second = other.pass(2);
  const auto other_second_gradients = other.gradients();
  other.clear_gradients();

  EXPECT_EQ(second, other_second);
  EXPECT_EQ(one.gradients(), other_second_gradients);
  EXPECT_EQ(other.pass(1), first);
  EXPECT_EQ(other.gradients(), first_gradients);
}

TEST_P(CudaModelTest, TellsTheHooksWhatTheHostDoes) {
  OnGpu gpu(GetParam());
  OnHost host(GetParam(), gpu.values);
  std::vector<std::pair<char, std::size_t>> found, expected;
  const auto hooks_into = [](auto& list) {
    return StepHooks{.before_use =
                         [&list](std::size_t p) {
                           list.emplace_back('u', p);
                           return core::Result<void>{};
                         },
                     .gradient_ready = [&list](std::size_t p) { list.emplace_back('r', p); }};
  };

  gpu.pass(1, hooks_into(found));
  const auto tokens = some_tokens(host.model.shape(), 1);
  ASSERT_TRUE(host.model.forward_backward(host.values.constant(), host.gradients.pointers(), tokens, tokens,
                                          hooks_into(expected)));

  EXPECT_EQ(found, expected);
}

TEST_P(CudaModelTest, PredictsWhatTheHostPredicts) {
  OnGpu gpu(GetParam());
  OnHost host(GetParam(), gpu.values);
  auto sequence = some_tokens(gpu.model().shape(), 5);
  sequence.resize(gpu.model().shape().length - 1);

  const auto found = gpu.model().logits(gpu.parameters(), sequence).value();
  const auto expected = host.model.logits(host.values.constant(), sequence).value();

  EXPECT_LT(difference(std::vector<float>(found.begin(), found.end()),
                       std::vector<double>(expected.begin(), expected.end())),
            gradient_tolerance(GetParam().dtype));
}

TEST(CudaModel, WaitsForLossesOnlyWhenTheyAreTaken) {
  Case smallest = kCases[0];
  smallest.shape = {1, 1};
  OnGpu gpu(smallest);
  const auto tokens = some_tokens(gpu.model().shape(), 1);
  const auto copies = cuda_emulation::pageable_copies();
  for (int i = 0; i < 70; ++i) ASSERT_TRUE(gpu.model().forward_loss(gpu.parameters(), tokens, tokens));

  const auto losses = gpu.model().take_losses().value();

  EXPECT_EQ(losses, std::vector<double>(70, losses[0]));
  EXPECT_EQ(cuda_emulation::pageable_copies(), copies);
  EXPECT_TRUE(gpu.model().take_losses().value().empty());
}

TEST(CudaModel, RefusesWhatItCanNotCompute) {
  EmulatedGpu gpu;
  ModelConfig wide = preset("tiny").value();
  wide.heads = 1;
  wide.width = 256;

  const auto model = create_cuda_model(wide, {1, 4}, {}, gpu.device(), gpu.stream());

  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, core::Errc::invalid_argument);
  EXPECT_NE(model.error().message.find("at most 128"), std::string::npos) << model.error().message;
}

TEST(CudaModel, SaysHowMuchMemoryItAskedFor) {
  EmulatedGpu gpu;
  ModelConfig large = preset("demo").value();
  large.layers = 64;

  const auto model = create_cuda_model(large, {512, 64}, {}, gpu.device(), gpu.stream());

  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, core::Errc::out_of_memory);
}

}  // namespace
}  // namespace troupe::apps::gpt
