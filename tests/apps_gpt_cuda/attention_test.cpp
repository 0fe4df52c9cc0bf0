#include <gtest/gtest.h>

#include "apps/gpt/kernels/kernels.hpp"
#include "apps/gpt/layers/attention.hpp"
#include "apps/gpt/model/sequence_part.hpp"
#include "core/random.hpp"
#include "tests/apps_gpt_cuda/test_gpu.hpp"

namespace troupe::apps::gpt {
namespace {

/// The rows (B, L, width) that a member has of all rows (B, T, width).
std::vector<float> part_of(const std::vector<float>& rows, std::size_t batch, std::size_t width,
                           const SequenceMember& member) {
  const std::size_t length = rows.size() / batch / width;
  std::vector<float> part;
  for (std::size_t b = 0; b < batch; ++b) {
    for (const std::size_t position : positions_of_member(length, member.members, member.index)) {
      const float* row = rows.data() + (b * length + position) * width;
      part.insert(part.end(), row, row + width);
    }
  }
  return part;
}

template <class E>
class CudaAttention : public testing::Test {
 protected:
  /// The results of forward and backward on the device.
  struct OnDevice {
    std::vector<float> y, query, key, value;
  };

  /// `given` are queries, keys, values and the gradient of the output.
  OnDevice on_device(AttentionShape shape, std::vector<float> (&given)[4], SequenceHalves rows) {
    const std::size_t B = shape.batch, H = shape.heads, D = shape.head_size;
    E* device[4];
    for (std::size_t i = 0; i < 4; ++i) device[i] = gpu_.put<E>(given[i]);
    E* found[4];
    const std::size_t counts[4] = {given[0].size(), given[0].size(), given[1].size(), given[2].size()};
    for (std::size_t i = 0; i < 4; ++i) found[i] = gpu_.room<E>(counts[i]);
    auto* statistics = gpu_.room<float>(2 * B * H * shape.length);
    const cuda::Attention<E> attention{
        B, shape.length, H, D, shape.key_heads, device[0], device[1], device[2], found[0], statistics, rows};
    gpu_.run([&](auto stream) { return cuda::attention_forward(attention, stream); });
    gpu_.run([&](auto stream) {
      return cuda::attention_backward<E>(
          attention, {device[3], found[1], found[2], found[3], statistics + B * H * shape.length}, stream);
    });
    return {gpu_.get(found[0], counts[0]), gpu_.get(found[1], counts[1]), gpu_.get(found[2], counts[2]),
            gpu_.get(found[3], counts[3])};
  }

  /// Rows and their gradients have the whole's bits; the members' sums for keys and values are the whole's.
  void compare_parts(AttentionShape shape, std::size_t members) {
    const std::size_t B = shape.batch, width = shape.heads * shape.head_size;
    const std::size_t key_width = shape.key_heads * shape.head_size;
    std::vector<float> given[4];
    for (std::size_t i = 0; i < 4; ++i) {
      const core::CounterRandom random(i, "attention of parts");
      given[i].resize(B * shape.length * (i == 0 || i == 3 ? width : key_width));
      for (std::size_t k = 0; k < given[i].size(); ++k) given[i][k] = random.normal(k);
    }
    const OnDevice whole = on_device(shape, given, {});
    std::vector<double> key(whole.key.size()), value(whole.value.size());

    for (std::size_t index = 0; index < members; ++index) {
      const SequenceMember member{members, index};
      const std::size_t piece = shape.length / (2 * members);
      auto own_shape = shape;
      own_shape.length = 2 * piece;
      std::vector<float> own[4] = {part_of(given[0], B, width, member), given[1], given[2],
                                   part_of(given[3], B, width, member)};
      const OnDevice part = on_device(
          own_shape, own,
          {.positions = shape.length, .lower = index * piece, .upper = (2 * members - 1 - index) * piece});
      EXPECT_EQ(part.y, part_of(whole.y, B, width, member)) << index << " of " << members;
      EXPECT_EQ(part.query, part_of(whole.query, B, width, member)) << index << " of " << members;
      for (std::size_t i = 0; i < key.size(); ++i) {
        key[i] += part.key[i];
        value[i] += part.value[i];
      }
    }

    EXPECT_LT(difference(whole.key, key), kTolerance<E>) << "of " << members;
    EXPECT_LT(difference(whole.value, value), kTolerance<E>) << "of " << members;
  }

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
    for (std::size_t i = 0; i < 4; ++i) {
      const core::CounterRandom random(i + count, "attention");
      for (std::size_t k = 0; k < counts[i]; ++k) inputs[i].push_back(random.normal(k));
    }
    const OnDevice device = on_device(shape, inputs, {});
    Results results{{device.y, device.query, device.key, device.value}, {}};
    std::vector<double> wide[4];
    for (std::size_t i = 0; i < 4; ++i) wide[i].assign(inputs[i].begin(), inputs[i].end());
    for (const auto& found : results.device) results.host.emplace_back(found.size());

    std::vector<double> probabilities(B * H * L * L), scratch(L * L);
    const Attention<double> host{shape, wide[0].data(), wide[1].data(), wide[2].data(), probabilities.data()};
    attention_forward(host, results.host[0].data());
    attention_backward(
        host, wide[3].data(),
        {results.host[1].data(), results.host[2].data(), results.host[3].data(), scratch.data()});
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

// Each row's sum runs over the same keys in the same order. Halves that a tile of rows crosses, that are
// tiles of their own, and that are smaller than a warp's rows.
TYPED_TEST(CudaAttention, OfSequencePartsGivesTheBitsOfTheWhole) {
  struct Shared {
    AttentionShape whole;
    std::size_t members;
  };
  const Shared cases[] = {{{.batch = 2, .length = 24, .heads = 2, .head_size = 8, .key_heads = 1}, 2},
                          {{.batch = 1, .length = 136, .heads = 1, .head_size = 6, .key_heads = 1}, 2},
                          {{.batch = 1, .length = 256, .heads = 2, .head_size = 20, .key_heads = 2}, 2},
                          {{.batch = 2, .length = 56, .heads = 4, .head_size = 8, .key_heads = 2}, 4}};
  for (const auto& [whole, members] : cases) this->compare_parts(whole, members);
}

TYPED_TEST(CudaAttention, RowsOfPartsGoToTheirPositionsAndBack) {
  for (const std::size_t width : {16, 3}) {
    const PieceRows rows{.members = 3, .batch = 2, .length = 8, .width = width};
    std::vector<float> by_position(rows.members * rows.batch * rows.length * width), by_member;
    for (std::size_t i = 0; i < by_position.size(); ++i) by_position[i] = static_cast<float>(i % 251);
    for (std::size_t member = 0; member < rows.members; ++member) {
      const auto part = part_of(by_position, rows.batch, width, {rows.members, member});
      by_member.insert(by_member.end(), part.begin(), part.end());
    }
    auto* ordered = this->gpu_.template room<TypeParam>(by_position.size());
    auto* handed = this->gpu_.template room<TypeParam>(by_member.size());
    const auto* from = this->gpu_.template put<TypeParam>(by_member);

    this->gpu_.run([&](auto stream) { return cuda::rows_by_position(rows, from, ordered, stream); });
    this->gpu_.run(
        [&](auto stream) { return cuda::rows_by_member<TypeParam>(rows, ordered, handed, stream); });

    EXPECT_EQ(this->gpu_.get(ordered, by_position.size()), by_position) << width;
    EXPECT_EQ(this->gpu_.get(handed, by_member.size()), by_member) << width;
  }
}

TYPED_TEST(CudaAttention, GivesTheSameBitsEveryTime) {
  const AttentionShape shape{.batch = 1, .length = 90, .heads = 4, .head_size = 16, .key_heads = 2};

  EXPECT_EQ(this->both(shape).device, this->both(shape).device);
}

}  // namespace
}  // namespace troupe::apps::gpt
