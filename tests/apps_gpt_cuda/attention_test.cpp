#include <gtest/gtest.h>

#include "apps/gpt/cuda/kernels.hpp"
#include "apps/gpt/layers/attention.hpp"
#include "core/random.hpp"
#include "tests/apps_gpt_cuda/test_gpu.hpp"

namespace troupe::apps::gpt {
namespace {

template <class E>
class CudaAttention : public testing::Test {
 protected:
  // Inputs and results of forward and backward, on the host in fp64 and on the device.
  struct Results {
    std::vector<std::vector<float>> device;
    std::vector<std::vector<double>> host;
  };

  Results both(AttentionShape shape) {
    const std::size_t B = shape.batch, L = shape.length, H = shape.heads, D = shape.head_size;
    const std::size_t count = B * L * H * D, key_count = B * L * shape.key_heads * D;
    const std::size_t counts[4] = {count, key_count, key_count, count};
    std::vector<float> inputs[4];
    E* device[4];
    std::vector<double> wide[4];
    for (std::size_t i = 0; i < 4; ++i) {
      const core::CounterRandom random(i + count, "attention");
      for (std::size_t k = 0; k < counts[i]; ++k) inputs[i].push_back(random.normal(k));
      device[i] = gpu_.put<E>(inputs[i]);
      wide[i].assign(inputs[i].begin(), inputs[i].end());
    }
    const std::size_t found_counts[4] = {count, count, key_count, key_count};
    E* found[4];
    Results results;
    for (std::size_t i = 0; i < 4; ++i) {
      found[i] = gpu_.room<E>(found_counts[i]);
      results.host.emplace_back(found_counts[i]);
    }
    auto* statistics = gpu_.room<float>(2 * B * H * L);
    const cuda::Attention<E> attention{B,         L,         H,         D,        shape.key_heads,
                                       device[0], device[1], device[2], found[0], statistics};
    gpu_.run([&](auto stream) { return cuda::attention_forward(attention, stream); });
    gpu_.run([&](auto stream) {
      return cuda::attention_backward<E>(
          attention, {device[3], found[1], found[2], found[3], statistics + B * H * L}, stream);
    });

    std::vector<double> probabilities(B * H * L * L), scratch(L * L);
    const Attention<double> host{shape, wide[0].data(), wide[1].data(), wide[2].data(), probabilities.data()};
    attention_forward(host, results.host[0].data());
    attention_backward(
        host, wide[3].data(),
        {results.host[1].data(), results.host[2].data(), results.host[3].data(), scratch.data()});
    for (std::size_t i = 0; i < 4; ++i) results.device.push_back(gpu_.get(found[i], found_counts[i]));
    return results;
  }

  TestGpu gpu_;
};

using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(CudaAttention, Types);

// Lengths of one tile, of several, and no multiple of one; heads that fill the tile's columns, and that do
// not; heads with keys of their own, that share them in groups of three, and all of them.
TYPED_TEST(CudaAttention, IsTheHosts) {
  const AttentionShape shapes[] = {{.batch = 2, .length = 5, .heads = 3, .head_size = 6},
                                   {.batch = 1, .length = 64, .heads = 1, .head_size = 16},
                                   {.batch = 1, .length = 131, .heads = 2, .head_size = 8},
                                   {.batch = 1, .length = 70, .heads = 1, .head_size = 64},
                                   {.batch = 1, .length = 33, .heads = 1, .head_size = 80},
                                   {.batch = 2, .length = 5, .heads = 6, .head_size = 6, .key_heads = 2},
                                   {.batch = 1, .length = 67, .heads = 3, .head_size = 20, .key_heads = 1},
                                   {.batch = 2, .length = 66, .heads = 4, .head_size = 8, .key_heads = 2}};
  for (const auto& shape : shapes) {
    const auto results = this->both(shape);

    const char* names[] = {"output", "query's gradient", "key's gradient", "value's gradient"};
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_LT(difference(results.device[i], results.host[i]), kTolerance<TypeParam>)
          << names[i] << " of length " << shape.length << ", head size " << shape.head_size << ", "
          << shape.key_heads << " key heads";
    }
  }
}

TYPED_TEST(CudaAttention, GivesTheSameBitsEveryTime) {
  const AttentionShape shape{.batch = 1, .length = 90, .heads = 4, .head_size = 16, .key_heads = 2};

  EXPECT_EQ(this->both(shape).device, this->both(shape).device);
}

}  // namespace
}  // namespace troupe::apps::gpt
