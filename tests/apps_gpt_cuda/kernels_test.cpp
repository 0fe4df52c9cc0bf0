#include "apps/gpt/kernels/kernels.hpp"

#include <gtest/gtest.h>

#include "apps/gpt/cuda/token_upload.hpp"
#include "apps/gpt/layers/activation.hpp"
#include "apps/gpt/layers/bias.hpp"
#include "apps/gpt/layers/cross_entropy.hpp"
#include "apps/gpt/layers/layer_norm.hpp"
#include "apps/gpt/layers/rms_norm.hpp"
#include "apps/gpt/layers/rotary.hpp"
#include "apps/gpt/model/vocabulary.hpp"
#include "core/random.hpp"
#include "tests/apps_gpt_cuda/test_gpu.hpp"

namespace troupe::apps::gpt {
namespace {

std::vector<float> normal_values(std::size_t count, std::uint64_t seed) {
  const core::CounterRandom random(seed, "values");
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = random.normal(i);
  return values;
}

std::vector<double> as_double(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

// Every kernel against its host layer in fp64, in both types of elements.
template <class E>
class CudaKernels : public testing::Test {
 protected:
  // What the test and the device both hold.
  struct Tensor {
    std::vector<float> host;
    E* device;
    std::vector<double> wide() const { return as_double(host); }
  };
  Tensor tensor(std::size_t count) {
    Tensor made{normal_values(count, ++seed_), nullptr};
    made.device = gpu_.put<E>(made.host);
    return made;
  }

  TestGpu gpu_;
  std::uint64_t seed_ = 0;
};

using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(CudaKernels, Types);

// Wide loads, and widths which have none; rows that fill no block, and more than one group of rows.
struct NormCase {
  std::size_t rows, width;
};
constexpr NormCase kNormCases[] = {{3, 24}, {70, 40}, {130, 23}};

TYPED_TEST(CudaKernels, RmsNormIsTheHosts) {
  using E = TypeParam;
  for (const auto [N, C] : kNormCases) {
    auto x = this->tensor(N * C), weight = this->tensor(C), d_y = this->tensor(N * C);
    auto d_x = this->tensor(N * C);
    auto* y = this->gpu_.template room<E>(N * C);
    auto* scale = this->gpu_.template room<float>(N);
    auto* d_weight = this->gpu_.template room<float>(C);
    auto* partials = this->gpu_.template room<float>(cuda::norm_partials(N, C));
    const cuda::Norm<E> norm{N, C, 1e-5F, x.device, weight.device, nullptr, nullptr, scale};
    auto wide_x = x.wide(), wide_weight = weight.wide(), wide_d_x = d_x.wide();
    std::vector<double> expected(N * C), scales(N), wide_d_weight(C);
    const RmsNorm<double> host{N, C, 1e-5, wide_x.data(), wide_weight.data(), scales.data()};
    rms_norm_forward(host, expected.data());
    rms_norm_backward_input(host, d_y.wide().data(), wide_d_x.data(), Write::accumulate);
    rms_norm_backward_weight(host, d_y.wide().data(), wide_d_weight.data());

    this->gpu_.run([&](auto stream) { return cuda::norm_forward(norm, y, stream); });
    this->gpu_.run([&](auto stream) {
      return cuda::norm_backward_weight<E>(norm, {d_y.device, d_weight, nullptr, partials}, stream);
    });
    this->gpu_.run([&](auto stream) {
      return cuda::norm_backward_input<E>(norm, d_y.device, d_x.device, Write::accumulate, stream);
    });

    EXPECT_LT(difference(this->gpu_.get(y, N * C), expected), kTolerance<E>);
    EXPECT_LT(difference(this->gpu_.get(d_x.device, N * C), wide_d_x), kTolerance<E>);
    EXPECT_LT(difference(this->gpu_.get(d_weight, C), wide_d_weight), kTolerance<float>);
  }
}

TYPED_TEST(CudaKernels, LayerNormIsTheHosts) {
  using E = TypeParam;
  for (const auto [N, C] : kNormCases) {
    auto x = this->tensor(N * C), weight = this->tensor(C), bias = this->tensor(C), d_y = this->tensor(N * C);
    auto d_x = this->tensor(N * C);
    auto* y = this->gpu_.template room<E>(N * C);
    auto* statistics = this->gpu_.template room<float>(2 * N);
    auto* d_parameters = this->gpu_.template room<float>(2 * C);
    auto* partials = this->gpu_.template room<float>(cuda::norm_partials(N, C));
    const cuda::Norm<E> norm{N, C, 1e-5F, x.device, weight.device, bias.device, statistics, statistics + N};
    auto wide_x = x.wide(), wide_weight = weight.wide(), wide_bias = bias.wide(), wide_d_x = d_x.wide();
    std::vector<double> expected(N * C), means(N), scales(N), wide_d_parameters(2 * C);
    const LayerNorm<double> host{
        N, C, 1e-5, wide_x.data(), wide_weight.data(), wide_bias.data(), means.data(), scales.data()};
    layer_norm_forward(host, expected.data());
    layer_norm_backward_input(host, d_y.wide().data(), wide_d_x.data(), Write::accumulate);
    layer_norm_backward_weight(host, d_y.wide().data(), wide_d_parameters.data(),
                               wide_d_parameters.data() + C);

    this->gpu_.run([&](auto stream) { return cuda::norm_forward(norm, y, stream); });
    this->gpu_.run([&](auto stream) {
      return cuda::norm_backward_weight<E>(norm, {d_y.device, d_parameters, d_parameters + C, partials},
                                           stream);
    });
    this->gpu_.run([&](auto stream) {
      return cuda::norm_backward_input<E>(norm, d_y.device, d_x.device, Write::accumulate, stream);
    });

    EXPECT_LT(difference(this->gpu_.get(y, N * C), expected), kTolerance<E>);
    EXPECT_LT(difference(this->gpu_.get(d_x.device, N * C), wide_d_x), kTolerance<E>);
    EXPECT_LT(difference(this->gpu_.get(d_parameters, 2 * C), wide_d_parameters), kTolerance<float>);
  }
}

// Heads of all rows, as queries and keys have them: narrow rows, of which several share a block's threads,
// and more of them than a group has.
TYPED_TEST(CudaKernels, NormsOfHeadsOverwriteTheGradientTheyRead) {
  using E = TypeParam;
  for (const auto [N, C] : {NormCase{7, 8}, NormCase{530, 16}, NormCase{1100, 6}}) {
    auto x = this->tensor(N * C), weight = this->tensor(C), d_heads = this->tensor(N * C);
    auto* y = this->gpu_.template room<E>(N * C);
    auto* scale = this->gpu_.template room<float>(N);
    auto* d_weight = this->gpu_.template room<float>(C);
    auto* partials = this->gpu_.template room<float>(cuda::norm_partials(N, C));
    const cuda::Norm<E> norm{N, C, 1e-5F, x.device, weight.device, nullptr, nullptr, scale};
    auto wide_x = x.wide(), wide_weight = weight.wide();
    std::vector<double> expected(N * C), scales(N), d_expected(N * C), wide_d_weight(C);
    const RmsNorm<double> host{N, C, 1e-5, wide_x.data(), wide_weight.data(), scales.data()};
    rms_norm_forward(host, expected.data());
    rms_norm_backward_input(host, d_heads.wide().data(), d_expected.data(), Write::overwrite);
    rms_norm_backward_weight(host, d_heads.wide().data(), wide_d_weight.data());

    this->gpu_.run([&](auto stream) { return cuda::norm_forward(norm, y, stream); });
    this->gpu_.run([&](auto stream) {
      return cuda::norm_backward_weight<E>(norm, {d_heads.device, d_weight, nullptr, partials}, stream);
    });
    this->gpu_.run([&](auto stream) {
      return cuda::norm_backward_input<E>(norm, d_heads.device, d_heads.device, Write::overwrite, stream);
    });

    EXPECT_LT(difference(this->gpu_.get(y, N * C), expected), kTolerance<E>);
    EXPECT_LT(difference(this->gpu_.get(d_heads.device, N * C), d_expected), kTolerance<E>);
    EXPECT_LT(difference(this->gpu_.get(d_weight, C), wide_d_weight), kTolerance<float>);
  }
}

TYPED_TEST(CudaKernels, BiasesAreTheHosts) {
  using E = TypeParam;
  for (const auto [N, C] : kNormCases) {
    auto y = this->tensor(N * C), bias = this->tensor(C), d_y = this->tensor(N * C);
    auto* d_bias = this->gpu_.template room<float>(C);
    auto* partials = this->gpu_.template room<float>(cuda::norm_partials(N, C));
    auto expected = y.wide();
    std::vector<double> d_expected(C);
    bias_forward(N, C, bias.wide().data(), expected.data());
    for (int pass = 0; pass < 2; ++pass) bias_backward(N, C, d_y.wide().data(), d_expected.data());

    this->gpu_.run([&](auto stream) { return cuda::bias_forward(N, C, bias.device, y.device, stream); });
    for (int pass = 0; pass < 2; ++pass) {
      this->gpu_.run(
          [&](auto stream) { return cuda::bias_backward(N, C, d_y.device, partials, d_bias, stream); });
    }

    EXPECT_LT(difference(this->gpu_.get(y.device, N * C), expected), kTolerance<E>);
    EXPECT_LT(difference(this->gpu_.get(d_bias, C), d_expected), kTolerance<float>);
  }
}

// Queries of three heads; keys of as many, of one, and none.
TYPED_TEST(CudaKernels, RotaryIsTheHostsThereAndBack) {
  using E = TypeParam;
  for (const auto& [head_size, key_heads] : {std::pair<std::size_t, std::size_t>{6, 1}, {32, 3}, {32, 0}}) {
    const std::size_t B = 2, L = 5, H = 3, count = B * L * H * head_size;
    const std::size_t key_count = B * L * key_heads * head_size;
    auto query = this->tensor(count), key = this->tensor(std::max<std::size_t>(key_count, 1));
    const Rotary<double> host(8, head_size, 10000);
    const Rotary<float> narrow(8, head_size, 10000);
    std::vector<float> cosine(narrow.cosine().begin(), narrow.cosine().end());
    std::vector<float> sine(narrow.sine().begin(), narrow.sine().end());
    auto wide_query = query.wide(), wide_key = key.wide();
    host.forward(B, L, H, wide_query.data());
    if (key_heads > 0) host.forward(B, L, key_heads, wide_key.data());
    cuda::Turn<E> turn{B * L,
                       L,
                       H,
                       key_heads,
                       head_size / 2,
                       this->gpu_.template put<float>(cosine),
                       this->gpu_.template put<float>(sine),
                       1,
                       query.device,
                       key.device};

    this->gpu_.run([&](auto stream) { return cuda::rotary(turn, stream); });
    const auto turned = this->gpu_.get(query.device, count),
               turned_key = this->gpu_.get(key.device, key_count);
    turn.direction = -1;
    this->gpu_.run([&](auto stream) { return cuda::rotary(turn, stream); });

    wide_key.resize(key_count), key.host.resize(key_count);
    EXPECT_LT(difference(turned, wide_query), kTolerance<E>);
    EXPECT_LT(difference(this->gpu_.get(query.device, count), query.host), kTolerance<E>);
    if (key_count == 0) continue;
    EXPECT_LT(difference(turned_key, wide_key), kTolerance<E>);
    EXPECT_LT(difference(this->gpu_.get(key.device, key_count), key.host), kTolerance<E>);
  }
}

TYPED_TEST(CudaKernels, ActivationsAreTheHosts) {
  using E = TypeParam;
  for (const std::size_t count : {1000, 523}) {
    auto gate = this->tensor(count), up = this->tensor(count), d_y = this->tensor(count);
    auto* y = this->gpu_.template room<E>(count);
    auto* d_gate = this->gpu_.template room<E>(count);
    auto* d_up = this->gpu_.template room<E>(count);
    std::vector<double> wide_y(count), wide_d_gate(count), wide_d_up(count);

    swiglu_forward(count, gate.wide().data(), up.wide().data(), wide_y.data());
    swiglu_backward(count, gate.wide().data(), up.wide().data(), d_y.wide().data(), wide_d_gate.data(),
                    wide_d_up.data());
    this->gpu_.run(
        [&](auto stream) { return cuda::swiglu_forward(count, gate.device, up.device, y, stream); });
    this->gpu_.run([&](auto stream) {
      return cuda::swiglu_backward(count, gate.device, up.device, d_y.device, d_gate, d_up, stream);
    });
    EXPECT_LT(difference(this->gpu_.get(y, count), wide_y), kTolerance<E>);
    EXPECT_LT(difference(this->gpu_.get(d_gate, count), wide_d_gate), kTolerance<E>);
    EXPECT_LT(difference(this->gpu_.get(d_up, count), wide_d_up), kTolerance<E>);

    gelu_forward(count, up.wide().data(), wide_y.data());
    gelu_backward(count, up.wide().data(), d_y.wide().data(), wide_d_up.data());
    this->gpu_.run([&](auto stream) { return cuda::gelu_forward(count, up.device, y, stream); });
    this->gpu_.run(
        [&](auto stream) { return cuda::gelu_backward(count, up.device, d_y.device, d_up, stream); });
    EXPECT_LT(difference(this->gpu_.get(y, count), wide_y), kTolerance<E>);
    EXPECT_LT(difference(this->gpu_.get(d_up, count), wide_d_up), kTolerance<E>);
  }
}

TYPED_TEST(CudaKernels, CrossEntropyIsTheHosts) {
  using E = TypeParam;
  for (const std::size_t V : {520, 37}) {
    const std::size_t N = 7;
    auto logits = this->tensor(N * V);
    const std::vector<std::int32_t> targets{0, 5, kNoTarget, 5, 36, kNoTarget, 30};
    auto expected = logits.wide();
    const std::optional<std::size_t> divisor = V == 37 ? std::optional<std::size_t>(11) : std::nullopt;
    const double loss = cross_entropy_forward<double>(nullptr, targets, V, expected.data(), divisor).value();
    cross_entropy_backward<double>(targets, 0, V, expected.data(), 8.0, divisor);
    auto* rows = this->gpu_.template room<float>(2 * N);
    auto* mean = this->gpu_.template room<double>(1);
    const cuda::CrossEntropy<E> entropy{N,    V,        this->gpu_.put(targets),        logits.device,
                                        rows, rows + N, loss_divisor(targets, divisor), 8};

    this->gpu_.run([&](auto stream) { return cuda::cross_entropy_forward(entropy, mean, stream); });
    this->gpu_.run([&](auto stream) { return cuda::cross_entropy_backward(entropy, stream); });

    EXPECT_NEAR(this->gpu_.get_all(mean, 1)[0], loss, 1e-6 * loss);
    EXPECT_LT(difference(this->gpu_.get(logits.device, N * V), expected), kTolerance<E>);
  }
}

// One token stands for more rows than a segment holds, and one never comes.
TYPED_TEST(CudaKernels, EmbeddingIsTheHosts) {
  using E = TypeParam;
  for (const std::size_t C : {24, 7}) {
    ModelConfig config = preset("tiny").value();
    config.vocabulary = 6;
    const BatchShape shape{2, 101};
    const std::size_t N = shape.rows(), V = config.vocabulary;
    std::vector<std::int32_t> tokens;
    for (std::size_t i = 0; i < N; ++i) tokens.push_back(i % 4 == 3 ? static_cast<std::int32_t>(i % 3) : 4);
    auto table = this->tensor(V * C), d_x = this->tensor(N * C);
    auto* x = this->gpu_.template room<E>(N * C);
    auto* d_table = this->gpu_.template room<float>(V * C);
    auto* partials = this->gpu_.template room<float>(segments_at_most(config, shape) * C);
    auto* words = this->gpu_.template room<std::int32_t>(token_words(config, shape));
    auto upload = TokenUpload::create(this->gpu_.device(), config, shape, words).value();
    std::vector<double> expected(N * C), d_expected(V * C);
    vocabulary_embedding_forward<double>(tokens, 0, V, C, table.wide().data(), expected.data());
    for (int pass = 0; pass < 2; ++pass)
      vocabulary_embedding_backward<double>(tokens, 0, V, C, d_x.wide().data(), d_expected.data());

    // The second pass finds the first one's words in place, and adds.
    for (int pass = 0; pass < 2; ++pass) {
      ASSERT_TRUE(upload.send(tokens, tokens, this->gpu_.stream()));
      this->gpu_.run([&](auto stream) {
        return cuda::embedding_forward(upload.place().tokens, N, C, table.device, x, stream);
      });
      this->gpu_.run([&](auto stream) {
        return cuda::embedding_backward(upload.order(), C, d_x.device, partials, d_table, stream);
      });
    }

    EXPECT_EQ(upload.order().token_count, 4U);
    EXPECT_GT(upload.order().segment_count, upload.order().token_count);
    EXPECT_EQ(difference(this->gpu_.get(x, N * C), expected), 0);
    EXPECT_LT(difference(this->gpu_.get(d_table, V * C), d_expected), kTolerance<float>);
  }
}

}  // namespace
}  // namespace troupe::apps::gpt
